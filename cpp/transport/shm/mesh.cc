#include "transport/shm/mesh.h"

#include <time.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/rank_list.h"
#include "platform/descriptors.h"
#include "platform/unix_socket.h"
#include "platform/wait.h"
#include "rendezvous/acceptor.h"
#include "rendezvous/auth.h"

namespace horoscale {
namespace {

// Pause between attempts to connect while descriptors have run out.
constexpr double kPauseSeconds = 0.05;

Status About(const Status& status, std::vector<int> ranks, const std::string& doing) {
  return Status(status.code(), doing + ": " + status.message(),
                FailureDetail{std::move(ranks), -1, ""});
}

class ShmMeshBuilder {
 public:
  ShmMeshBuilder(const MeshConfig& config, const LinkOffer& offer,
                 const std::map<int, std::byte*>& rings, Store& store)
      : config_(config),
        offer_(offer),
        rings_(rings),
        store_(store),
        deadline_(Deadline::After(config.seconds)) {}

  Result<std::map<int, ShmLink>> Build() {
    Result<UnixListener> listener = UnixListener::Create();
    if (!listener.ok()) return listener.status();
    listener_.emplace(listener.TakeValue());
    HS_RETURN_IF_ERROR(FindOthers(listener_->name()));
    for (const auto& [rank, name] : names_) {
      if (rank >= self()) break;
      if (Status connected = ConnectTo(rank); !connected.ok()) {
        return About(connected, {rank},
                     Me() + " can't connect to rank " + std::to_string(rank) + " on this host");
      }
    }
    HS_RETURN_IF_ERROR(AcceptOthers());
    return std::move(links_);
  }

 private:
  int self() const { return offer_.hello.rank; }
  std::string Me() const { return "rank " + std::to_string(self()); }
  std::string AuthContext(int server) const {
    return "shm link to rank " + std::to_string(server) + " of " + config_.key_prefix;
  }

  // The ranks of the host exchange their listening sockets.
  Status FindOthers(const std::string& own_name) {
    const std::vector<int>& ranks = config_.ranks;
    const std::string key = config_.key_prefix + "shm/" + std::to_string(ranks.front());
    const auto own = std::lower_bound(ranks.begin(), ranks.end(), self()) - ranks.begin();
    GatherRequest request;
    request.key = key;
    request.place = static_cast<uint32_t>(own);
    request.count = static_cast<uint32_t>(ranks.size());
    request.value = std::as_bytes(std::span(own_name));
    const auto names = store_.Gather(request, deadline_.SecondsLeft());
    if (names.status().code() == StatusCode::kTimeout) {
      std::vector<int> missing;
      for (const int place : names.status().detail().ranks) {
        missing.push_back(ranks.at(static_cast<size_t>(place)));
      }
      return DidNotCome(missing, "start");
    }
    if (!names.ok()) return About(names.status(), {}, Me() + " can't find the ranks of its host");
    for (const auto& [place, name] : names->values) {
      names_[ranks.at(place)].assign(reinterpret_cast<const char*>(name.data()), name.size());
    }
    return {};
  }

  Status DidNotCome(const std::vector<int>& missing, std::string_view what,
                    const std::string& trouble = "") const {
    return Status(StatusCode::kTimeout,
                  RankList(missing) + " did not " + std::string(what) + " within " +
                      std::to_string(static_cast<int>(config_.seconds)) +
                      " s of the start of rank " + std::to_string(self()) +
                      ": check the output of these ranks" + trouble,
                  FailureDetail{missing, -1, ""});
  }

  // Connects and authenticates. Retries if the peer drops the connection because it is overloaded
  // or its descriptors have run out.
  Result<ByteStream> Reach(int rank) {
    while (true) {
      Result<ByteStream> socket = ConnectUnix(names_.at(rank), deadline_);
      if (LacksDescriptors(socket.status()) && !deadline_.Passed()) {
        const timespec pause = ToTimespec(std::min(kPauseSeconds, deadline_.SecondsLeft()));
        nanosleep(&pause, nullptr);
        continue;
      }
      if (!socket.ok()) return socket.status();
      HS_RETURN_IF_ERROR(CheckSameUser(*socket));
      const Status let_in = AuthenticateToServer(*socket, config_.secret, AuthContext(rank),
                                                 Protection::kNone, deadline_);
      if (let_in.ok()) return socket;
      if (!MayBeLetInLater(let_in) || deadline_.Passed()) return let_in;
    }
  }

  Status ConnectTo(int rank) {
    Result<ByteStream> socket = Reach(rank);
    if (!socket.ok()) return socket.status();
    HS_RETURN_IF_ERROR(SendHello(*socket, offer_.hello, deadline_));
    Result<int> answer = ReceiveHello(*socket, offer_.hello, deadline_);
    if (!answer.ok()) return answer.status();
    if (*answer != rank) {
      return Status::Protocol("rank " + std::to_string(*answer) + " answered instead");
    }
    return MakeLink(rank, socket.TakeValue());
  }

  Status AcceptOthers() {
    const auto accept = [this]() -> Result<ByteStream> {
      Result<ByteStream> socket = listener_->Accept(Deadline::After(0));
      if (socket.ok()) HS_RETURN_IF_ERROR(CheckSameUser(*socket));
      return socket;
    };
    Result<Acceptor> acceptor = Acceptor::Create({{listener_->fd(), accept}}, config_.secret,
                                                 AuthContext(self()), Protection::kNone);
    if (!acceptor.ok()) return acceptor.status();
    acceptor_.emplace(acceptor.TakeValue());
    while (links_.size() + 1 < names_.size()) {
      Result<ByteStream> socket = acceptor_->Next(deadline_, config_.look);
      if (socket.status().code() == StatusCode::kTimeout) {
        std::vector<int> missing;
        for (const auto& [rank, name] : names_) {
          if (rank > self() && !links_.contains(rank)) missing.push_back(rank);
        }
        return DidNotCome(missing, "connect", acceptor_->trouble());
      }
      if (!socket.ok()) return socket.status();
      HS_RETURN_IF_ERROR(LetIn(socket.TakeValue()));
    }
    return {};
  }

  Status LetIn(ByteStream socket) {
    // Also sent to a rank with other settings, so that it reports the same error.
    HS_RETURN_IF_ERROR(SendHello(socket, offer_.hello, deadline_));
    Result<int> rank = ReceiveHello(socket, offer_.hello, deadline_);
    if (!rank.ok()) {
      return About(rank.status(), {}, Me() + " can't accept a connection from a higher rank");
    }
    if (*rank <= self() || !names_.contains(*rank) || links_.contains(*rank)) {
      return Status::Protocol("a process that claims to be rank " + std::to_string(*rank) +
                              " connected to rank " + std::to_string(self()));
    }
    Status made = MakeLink(*rank, std::move(socket));
    if (made.ok()) return made;
    return About(made, {*rank}, Me() + " can't connect to rank " + std::to_string(*rank));
  }

  Status MakeLink(int rank, ByteStream socket) {
    Result<ShmLink> link = ExchangeMemory(std::move(socket), offer_, rings_.at(rank), deadline_);
    if (!link.ok()) return link.status();
    links_.emplace(rank, link.TakeValue());
    return {};
  }

  const MeshConfig& config_;
  const LinkOffer& offer_;
  const std::map<int, std::byte*>& rings_;
  Store& store_;
  const Deadline deadline_;
  std::map<int, std::string> names_;  // names of the sockets by rank, including this one
  // Waiting peers see these sockets close, so they must be closed after a failure was explained.
  std::optional<UnixListener> listener_;
  std::optional<Acceptor> acceptor_;
  std::map<int, ShmLink> links_;
};

}  // namespace

Result<std::map<int, ShmLink>> ConnectMesh(const MeshConfig& config, const LinkOffer& offer,
                                           const std::map<int, std::byte*>& rings, Store& store) {
  ShmMeshBuilder builder(config, offer, rings, store);
  Result<std::map<int, ShmLink>> links = builder.Build();
  if (!links.ok() && config.explain) return config.explain(links.status());
  return links;
}

}  // namespace horoscale
