#include "transport/tcp/tcp_mesh.h"

#include <poll.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "platform/deadline.h"
#include "platform/wait.h"

namespace horoscale {
namespace {

// Additional time for errors of calls that fail at the deadline.
constexpr double kLastCallSeconds = 0.5;

class TcpMeshBuilder {
 public:
  TcpMeshBuilder(const TcpMeshConfig& config, Store& store)
      : config_(config),
        store_(store),
        deadline_(Deadline::After(config.seconds)),
        missing_(config.at_once.begin(), config.at_once.end()) {}

  Status Build() {
    auto door = TcpDoor::Open(config_.door);
    if (!door.ok()) return door.status();
    auto places = FindOthers(door->places);
    if (!places.ok()) return places.status();
    auto maker = TcpLinkMaker::Start(
        {config_.terms, std::move(door->listeners), places.TakeValue(), deadline_.SecondsLeft()});
    if (!maker.ok()) return maker.status();
    mesh_.maker = maker.TakeValue();
    for (const int peer : config_.at_once) {
      if (peer < config_.terms.rank) mesh_.maker->Call(peer);
    }
    while (!missing_.empty()) {
      HS_RETURN_IF_ERROR(WaitForLinks());
      HS_RETURN_IF_ERROR(TakeLinks());
    }
    mesh_.maker->EndStart();
    return {};
  }

  TcpMesh TakeMesh() { return std::move(mesh_); }

 private:
  static Status About(const Status& status, std::vector<int> ranks, const std::string& doing) {
    return Status(status.code(), doing + ": " + status.message(),
                  FailureDetail{std::move(ranks), -1, ""});
  }
  std::string Me() const { return "rank " + std::to_string(config_.terms.rank); }

  // The ranks exchange their addresses. Returns those of the peers: "[address]:port, newline, …".
  Result<std::map<int, std::string>> FindOthers(const std::string& own) {
    const std::string key = config_.terms.key_prefix + "tcp";
    GatherRequest request;
    request.key = key;
    request.place = static_cast<uint32_t>(config_.terms.rank);
    request.count = static_cast<uint32_t>(config_.size);
    request.value = std::as_bytes(std::span(own));
    auto gathered = store_.Gather(request, deadline_.SecondsLeft());
    if (gathered.status().code() == StatusCode::kTimeout) {
      return About(gathered.status(), gathered.status().detail().ranks,
                   Me() + " can't find the ranks of other hosts");
    }
    if (!gathered.ok()) return gathered.status();
    std::map<int, std::string> places;
    for (const auto& [place, value] : gathered->values) {
      const auto rank = static_cast<int>(place);
      if (!std::binary_search(config_.peers.begin(), config_.peers.end(), rank)) continue;
      places[rank].assign(reinterpret_cast<const char*>(value.data()), value.size());
    }
    return places;
  }

  Status WaitForLinks() {
    if (deadline_.Passed()) {
      // Wait for calls that fail now, because their errors list what was tried.
      const Deadline last_words = Deadline::After(kLastCallSeconds);
      if (WaitForDescriptor(mesh_.maker->fd(), POLLIN, last_words).ok()) return {};
      HS_RETURN_IF_ERROR(Look());
      return DidNotConnect();
    }
    const double seconds = std::min(deadline_.SecondsLeft(), next_look_.SecondsLeft());
    const Status waited = WaitForDescriptor(mesh_.maker->fd(), POLLIN, Deadline::After(seconds));
    if (!waited.ok() && waited.code() != StatusCode::kTimeout) return waited;
    if (!next_look_.Passed()) return {};
    next_look_ = Deadline::After(Acceptor::kLookSeconds);
    return Look();
  }

  // An error if another rank has failed, so that ranks that gave up because of it are not blamed.
  Status Look() const { return config_.look ? config_.look() : Status(); }

  Status TakeLinks() {
    for (TcpLinkMaker::Made& made : mesh_.maker->Take()) {
      if (made.rank < 0) return made.failure;
      if (!made.failure.ok()) {
        HS_RETURN_IF_ERROR(Look());
        return About(made.failure, {made.rank},
                     Me() + " can't reach rank " + std::to_string(made.rank) +
                         " (select the network with --network-interface or NETWORK_INTERFACE)");
      }
      missing_.erase(made.rank);
      mesh_.links.emplace(made.rank, std::move(made.streams));
    }
    return {};
  }

  Status DidNotConnect() const {
    std::string names;
    for (const int peer : missing_) names += (names.empty() ? "" : ", ") + std::to_string(peer);
    return Status(StatusCode::kTimeout,
                  "no connection from rank(s) " + names + " to " + Me() + " within " +
                      std::to_string(static_cast<int>(config_.seconds)) +
                      " s: check the output of these ranks, and whether a firewall blocks "
                      "connections between the hosts" +
                      mesh_.maker->trouble(),
                  FailureDetail{{missing_.begin(), missing_.end()}, -1, ""});
  }

  const TcpMeshConfig& config_;
  Store& store_;
  const Deadline deadline_;
  Deadline next_look_ = Deadline::After(Acceptor::kLookSeconds);
  TcpMesh mesh_;
  std::set<int> missing_;  // missing links of the startup
};

}  // namespace

Result<TcpMesh> ConnectTcpMesh(const TcpMeshConfig& config, Store& store) {
  TcpMeshBuilder builder(config, store);
  // Waiting peers see the links close, so they must be closed after a failure was explained.
  const Status built = builder.Build();
  if (built.ok()) return builder.TakeMesh();
  return config.explain ? config.explain(built) : built;
}

}  // namespace horoscale
