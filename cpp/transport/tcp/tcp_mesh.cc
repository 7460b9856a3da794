#include "transport/tcp/tcp_mesh.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "platform/tcp_socket.h"
#include "platform/thread.h"
#include "platform/wait.h"
#include "rendezvous/acceptor.h"
#include "rendezvous/address.h"
#include "rendezvous/auth.h"
#include "transport/tcp/tcp_hello.h"

namespace horoscale {
namespace {

// One address may swallow connections without a word: others get their turn.
constexpr double kAddressSeconds = 3;

// Between tries to reach a rank that is crowded by others.
constexpr double kRetrySeconds = 0.02;

class TcpMeshBuilder {
 public:
  TcpMeshBuilder(const TcpMeshConfig& config, Store& store)
      : config_(config), store_(store), deadline_(Deadline::After(config.seconds)) {
    for (const int peer : config.peers) {
      streams_[peer].resize(1 + config.data_streams);
      if (peer > config.rank) above_.insert(peer);
    }
  }

  Result<std::map<int, TcpStreams>> Build() {
    HS_RETURN_IF_ERROR(Listen());
    HS_RETURN_IF_ERROR(FindOthers());
    auto accepting = Thread::Start("horoscale-links", [this] { accepted_ = AcceptOthers(); });
    if (!accepting.ok()) return accepting.status();
    const Status connected = ConnectToOthers();
    if (!connected.ok()) stopping_.store(true);
    accepting->Join();
    if (accept_failed_.load()) return accepted_;
    HS_RETURN_IF_ERROR(connected);
    std::map<int, TcpStreams> result;
    for (auto& [peer, streams] : streams_) {
      // The control stream finds out for all: the data streams of a rank that lives, but is stopped
      // in a debugger, may be full for as long as that takes.
      HS_RETURN_IF_ERROR(SetSilenceLimit(*streams.front(), config_.silence_seconds));
      for (std::optional<ByteStream>& stream : streams) {
        SetKeepAlive(*stream, config_.silence_seconds);
        result[peer].push_back(std::move(*stream));
      }
    }
    return result;
  }

 private:
  static Status About(const Status& status, std::vector<int> ranks, const std::string& doing) {
    return Status(status.code(), doing + ": " + status.message(),
                  FailureDetail{std::move(ranks), -1, ""});
  }
  std::string Me() const { return "rank " + std::to_string(config_.rank); }
  std::string AuthContext(int server) const {
    return "tcp link to rank " + std::to_string(server) + " of " + config_.key_prefix;
  }

  TcpHello OwnHello(uint32_t stream) const {
    TcpHello hello;
    hello.rank = config_.rank;
    hello.stream = stream;
    hello.data_streams = config_.data_streams;
    return hello;
  }

  // Where others may reach this rank, the likeliest first; and listens there.
  Status Listen() {
    std::vector<std::string> addresses;
    const bool on_loopback = config_.loopback_only;
    const bool everywhere = !on_loopback && config_.interfaces.empty();
    if (!on_loopback) {
      const auto found = MachineAddresses(config_.interfaces);
      if (!found.ok()) return found.status();
      addresses = *found;
    }
    if (everywhere || on_loopback) {
      // Last, for ranks that only play several hosts on one machine.
      addresses.insert(addresses.end(), {"127.0.0.1", "::1"});
      const auto first = std::find(addresses.begin(), addresses.end(), config_.first_address);
      if (first != addresses.end()) std::rotate(addresses.begin(), first, first + 1);
    }
    if (!everywhere) return ListenOn(addresses);
    auto all = TcpListener::Create("::", 0);
    if (!all.ok()) all = TcpListener::Create("0.0.0.0", 0);  // machines may lack IPv6
    if (!all.ok()) return all.status();
    for (const std::string& address : addresses) Add(address, all->port());
    listeners_.push_back(all.TakeValue());
    return {};
  }

  // On each of these alone.
  Status ListenOn(const std::vector<std::string>& addresses) {
    Status last = Status::InvalidArgument("the chosen network interfaces have no address");
    for (const std::string& address : addresses) {
      auto listener = TcpListener::Create(address, 0);
      if (listener.ok()) {
        Add(address, listener->port());
        listeners_.push_back(listener.TakeValue());
      } else if (listeners_.empty()) {
        last = listener.status();  // machines may lack IPv6
      }
    }
    return listeners_.empty() ? last : Status();
  }

  void Add(const std::string& address, uint16_t port) {
    own_places_ += "[" + address + "]:" + std::to_string(port) + "\n";
  }

  // The ranks tell each other where they listen: "[address]:port, newline, …".
  Status FindOthers() {
    const std::string key = config_.key_prefix + "tcp";
    GatherRequest request;
    request.key = key;
    request.place = static_cast<uint32_t>(config_.rank);
    request.count = static_cast<uint32_t>(config_.size);
    request.value = std::as_bytes(std::span(own_places_));
    auto gathered = store_.Gather(request, deadline_.SecondsLeft());
    if (gathered.status().code() == StatusCode::kTimeout) {
      return About(gathered.status(), gathered.status().detail().ranks,
                   Me() + " can't find the ranks of other hosts");
    }
    if (!gathered.ok()) return gathered.status();
    for (const auto& [rank, value] : gathered->values) {
      places_[static_cast<int>(rank)].assign(reinterpret_cast<const char*>(value.data()),
                                             value.size());
    }
    return {};
  }

  Status ConnectToOthers() {
    for (const int peer : config_.peers) {
      if (peer > config_.rank) break;
      HS_RETURN_IF_ERROR(Look());
      HS_RETURN_IF_ERROR(ConnectTo(peer));
    }
    return {};
  }

  // Why to give up: the other thread has failed, or somebody else for whom all would wait.
  Status Look() {
    if (accept_failed_.load()) return {StatusCode::kSystem, "no links to the ranks above"};
    if (!config_.look || !next_look_.Passed()) return {};
    next_look_ = Deadline::After(Acceptor::kLookSeconds);
    return config_.look();
  }

  // Tries all addresses again and again while one of them may yet lead there.
  Status ConnectTo(int peer) {
    while (true) {
      bool may_come = false;
      std::string tried;
      Status last = Status::Protocol("it gave no address");
      std::istringstream lines(places_[peer]);
      for (std::string line; std::getline(lines, line);) {
        const auto place = ParseHostPort(line);
        if (!place.ok()) return About(place.status(), {peer}, "the store's entry of a rank");
        last = ConnectAt(peer, *place, &may_come);
        if (last.ok()) return last;
        tried += (tried.empty() ? "" : "; ") + last.message();
      }
      HS_RETURN_IF_ERROR(Look());
      if (!may_come || deadline_.Passed()) {
        return About(Status(last.code(), tried), {peer},
                     Me() + " can't reach rank " + std::to_string(peer) +
                         " (--network-interface or NETWORK_INTERFACE chooses the network)");
      }
      const timespec pause = ToTimespec(std::min(kRetrySeconds, deadline_.SecondsLeft()));
      nanosleep(&pause, nullptr);
    }
  }

  // Makes the streams that are missing. The same address may belong to another machine as well,
  // which does not know the secret, or does not answer. `may_come` is set if a later try may
  // succeed.
  Status ConnectAt(int peer, const HostPort& place, bool* may_come) {
    Streams& streams = streams_.at(peer);
    for (uint32_t number = 0; number <= config_.data_streams; ++number) {
      if (streams[number]) continue;
      const double left = deadline_.SecondsLeft();
      const Deadline answer_by = Deadline::After(std::min(kAddressSeconds, left));
      Result<ByteStream> stream = ConnectTcp(place.host, place.port, answer_by);
      if (!stream.ok()) {
        if (stream.status().code() == StatusCode::kTimeout) *may_come = true;
        return stream.status();
      }
      const Deadline let_in_by = Deadline::After(std::min(kHandshakeSeconds, left));
      const Status let_in = AuthenticateToServer(*stream, config_.secret, AuthContext(peer),
                                                 BetweenHosts(config_.encrypt), let_in_by);
      if (MayBeLetInLater(let_in)) *may_come = true;
      HS_RETURN_IF_ERROR(let_in);
      HS_RETURN_IF_ERROR(SendTcpHello(*stream, OwnHello(number), deadline_));
      streams[number].emplace(stream.TakeValue());
    }
    return {};
  }

  using Streams = std::vector<std::optional<ByteStream>>;  // control and data, by number

  static bool AreComplete(const Streams& streams) {
    return std::all_of(streams.begin(), streams.end(), [](const auto& s) { return s.has_value(); });
  }

  // On a thread of its own.
  Status AcceptOthers() {
    const Status accepted = AcceptAbove();
    if (!accepted.ok() && !stopping_.load()) accept_failed_.store(true);
    return accepted;
  }

  Status AcceptAbove() {
    std::vector<Acceptor::Door> doors;
    for (TcpListener& listener : listeners_) {
      doors.push_back({listener.fd(), [&listener] { return listener.Accept(Deadline::After(0)); }});
    }
    Result<Acceptor> acceptor = Acceptor::Create(
        std::move(doors), config_.secret, AuthContext(config_.rank), BetweenHosts(config_.encrypt));
    if (!acceptor.ok()) return acceptor.status();
    acceptor_.emplace(acceptor.TakeValue());
    const auto look = [this] {
      if (stopping_.load()) return Status(StatusCode::kSystem, "the links below failed");
      return config_.look ? config_.look() : Status();
    };
    while (!std::all_of(above_.begin(), above_.end(),
                        [this](int peer) { return AreComplete(streams_.at(peer)); })) {
      Result<ByteStream> stream = acceptor_->Next(deadline_, look);
      if (stream.status().code() == StatusCode::kTimeout) return DidNotConnect();
      if (!stream.ok()) return stream.status();
      HS_RETURN_IF_ERROR(LetIn(stream.TakeValue()));
    }
    return {};
  }

  Status DidNotConnect() const {
    std::vector<int> missing;
    std::string names;
    for (const int peer : above_) {
      if (AreComplete(streams_.at(peer))) continue;
      names += (missing.empty() ? "" : ", ") + std::to_string(peer);
      missing.push_back(peer);
    }
    return Status(
        StatusCode::kTimeout,
        "no connection from rank(s) " + names + " to rank " + std::to_string(config_.rank) +
            " within " + std::to_string(static_cast<int>(config_.seconds)) +
            " s: look at the output of these ranks, and for a firewall between the hosts" +
            acceptor_->trouble(),
        FailureDetail{missing, -1, ""});
  }

  Status LetIn(ByteStream stream) {
    const Deadline by = Deadline::After(std::min(kHandshakeSeconds, deadline_.SecondsLeft()));
    const auto hello = ReceiveTcpHello(stream, OwnHello(0), above_, by);
    // One that has given up meanwhile, or is held up, comes again.
    if (!hello.ok()) return MayBeLetInLater(hello.status()) ? Status() : hello.status();
    // A rank that had to try another address connects again: the last one counts.
    streams_.at(hello->rank)[hello->stream].emplace(std::move(stream));
    return {};
  }

  const TcpMeshConfig& config_;
  Store& store_;
  const Deadline deadline_;
  // Who waits here to be let in sees them close: that comes after a failure was explained.
  std::vector<TcpListener> listeners_;
  std::optional<Acceptor> acceptor_;
  std::string own_places_;             // where this rank listens
  std::map<int, std::string> places_;  // where each rank does
  std::set<int> above_;                // the peers that connect to this rank
  // Of all peers, from the beginning: the two threads write those of different ones.
  std::map<int, Streams> streams_;
  Status accepted_;  // what the accepting thread has come to
  Deadline next_look_ = Deadline::After(Acceptor::kLookSeconds);  // of the connecting thread
  std::atomic<bool> stopping_{false};                             // the other thread has failed
  std::atomic<bool> accept_failed_{false};                        // this one has, and first
};

}  // namespace

Result<std::map<int, TcpStreams>> ConnectTcpMesh(const TcpMeshConfig& config, Store& store) {
  TcpMeshBuilder builder(config, store);
  Result<std::map<int, TcpStreams>> streams = builder.Build();
  if (!streams.ok() && config.explain) return config.explain(streams.status());
  return streams;
}

}  // namespace horoscale
