#include "transport/tcp/tcp_mesh.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "platform/tcp_socket.h"
#include "rendezvous/acceptor.h"
#include "rendezvous/address.h"
#include "rendezvous/auth.h"
#include "transport/tcp/tcp_hello.h"

namespace horoscale {
namespace {

// One address may swallow connections without a word: others get their turn.
constexpr double kAddressSeconds = 3;

Status About(const Status& status, int rank, const std::string& doing) {
  return Status(status.code(), doing + ": " + status.message(), FailureDetail{{rank}, -1, ""});
}

class MeshBuilder {
 public:
  MeshBuilder(const TcpMeshConfig& config, Store& store)
      : config_(config), store_(store), deadline_(Deadline::After(config.seconds)) {
    for (const int peer : config.peers) {
      streams_[peer].resize(1 + config.data_streams);
      if (peer > config.rank) above_.insert(peer);
    }
  }

  Result<std::map<int, TcpStreams>> Build() {
    Result<TcpListener> listener = Listen();
    if (!listener.ok()) return listener.status();
    listener_.emplace(listener.TakeValue());
    HS_RETURN_IF_ERROR(Publish(listener_->port()));
    for (const int peer : config_.peers) {
      if (peer > config_.rank) break;
      HS_RETURN_IF_ERROR(ConnectTo(peer));
    }
    HS_RETURN_IF_ERROR(AcceptOthers());
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
  std::string Me() const { return "rank " + std::to_string(config_.rank); }
  std::string Key(int rank) const { return config_.key_prefix + "tcp/" + std::to_string(rank); }
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

  // Machines may lack IPv6.
  static Result<TcpListener> Listen() {
    Result<TcpListener> both = TcpListener::Create("::", 0);
    return both.ok() ? std::move(both) : TcpListener::Create("0.0.0.0", 0);
  }

  // "port, newline, address, newline, …", the likeliest first.
  Status Publish(uint16_t port) {
    const auto found = MachineAddresses(config_.interfaces);
    if (!found.ok()) return found.status();
    std::vector<std::string> addresses = *found;
    if (config_.interfaces.empty()) {
      // Last, for ranks that only play several hosts on one machine.
      addresses.insert(addresses.end(), {"127.0.0.1", "::1"});
      const auto first = std::find(addresses.begin(), addresses.end(), config_.first_address);
      if (first != addresses.end()) std::rotate(addresses.begin(), first, first + 1);
    }
    std::string text = std::to_string(port);
    for (const std::string& address : addresses) text += "\n" + address;
    return store_.Set(Key(config_.rank), std::as_bytes(std::span(text)));
  }

  Status ConnectTo(int peer) {
    const Result<std::vector<std::byte>> value = store_.Get(Key(peer), deadline_.SecondsLeft());
    if (!value.ok()) {
      return About(value.status(), peer, Me() + " can't find rank " + std::to_string(peer));
    }
    std::string text(reinterpret_cast<const char*>(value->data()), value->size());
    const std::string port = text.substr(0, text.find('\n'));
    std::string tried;
    Status last = Status::Protocol("it gave no address");
    while (text.find('\n') != std::string::npos) {
      text.erase(0, text.find('\n') + 1);
      const std::string address = text.substr(0, text.find('\n'));
      const auto parsed = ParseHostPort("[" + address + "]:" + port);
      if (!parsed.ok()) return About(parsed.status(), peer, "the store's entry of a rank");
      last = ConnectAt(peer, address, parsed->port);
      if (last.ok()) return last;
      tried += (tried.empty() ? "" : "; ") + last.message();
    }
    return About(Status(last.code(), tried), peer,
                 Me() + " can't reach rank " + std::to_string(peer) +
                     " (--network-interface or NETWORK_INTERFACE chooses the network)");
  }

  // The same address may belong to another machine as well, which does not know the secret.
  Status ConnectAt(int peer, const std::string& address, uint16_t port) {
    for (uint32_t number = 0; number <= config_.data_streams; ++number) {
      const Deadline deadline = Deadline::After(std::min(kAddressSeconds, deadline_.SecondsLeft()));
      Result<ByteStream> stream = ConnectTcp(address, port, deadline);
      if (!stream.ok()) return stream.status();
      // The peer may be busy connecting to others before it lets anybody in.
      HS_RETURN_IF_ERROR(
          AuthenticateToServer(*stream, config_.secret, AuthContext(peer), deadline_));
      const TcpHello hello = OwnHello(number);
      HS_RETURN_IF_ERROR(stream->SendAll(std::as_bytes(std::span(&hello, 1)), deadline_));
      streams_[peer][number].emplace(stream.TakeValue());
    }
    return {};
  }

  using Streams = std::vector<std::optional<ByteStream>>;  // control and data, by number

  static bool AreComplete(const Streams& streams) {
    return std::all_of(streams.begin(), streams.end(), [](const auto& s) { return s.has_value(); });
  }

  Status AcceptOthers() {
    Result<Acceptor> acceptor = Acceptor::Create(
        listener_->fd(), [this] { return listener_->Accept(Deadline::After(0)); }, config_.secret,
        AuthContext(config_.rank));
    if (!acceptor.ok()) return acceptor.status();
    acceptor_.emplace(acceptor.TakeValue());
    while (!std::all_of(streams_.begin(), streams_.end(),
                        [](const auto& entry) { return AreComplete(entry.second); })) {
      Result<ByteStream> stream = acceptor_->Next(deadline_, config_.look);
      if (stream.status().code() == StatusCode::kTimeout) return DidNotConnect();
      if (!stream.ok()) return stream.status();
      HS_RETURN_IF_ERROR(LetIn(stream.TakeValue()));
    }
    return {};
  }

  Status DidNotConnect() const {
    std::vector<int> missing;
    std::string names;
    for (const auto& [peer, streams] : streams_) {
      if (AreComplete(streams)) continue;
      names += (missing.empty() ? "" : ", ") + std::to_string(peer);
      missing.push_back(peer);
    }
    return Status(StatusCode::kTimeout,
                  "no connection from rank(s) " + names + " to rank " +
                      std::to_string(config_.rank) + " within " +
                      std::to_string(static_cast<int>(config_.seconds)) +
                      " s: look at the output of these ranks, and for a firewall between the hosts",
                  FailureDetail{missing, -1, ""});
  }

  Status LetIn(ByteStream stream) {
    std::array<std::byte, sizeof(TcpHello)> bytes;
    HS_RETURN_IF_ERROR(stream.ReceiveAll(bytes, deadline_));
    const auto hello = DecodeTcpHello(bytes, OwnHello(0), above_, stream.peer());
    if (!hello.ok()) return hello.status();
    // A rank that had to try another address connects again: the last one counts.
    streams_.at(hello->rank)[hello->stream].emplace(std::move(stream));
    return {};
  }

  const TcpMeshConfig& config_;
  Store& store_;
  const Deadline deadline_;
  // Who waits here to be let in sees them close: that comes after a failure was explained.
  std::optional<TcpListener> listener_;
  std::optional<Acceptor> acceptor_;
  std::map<int, Streams> streams_;
  std::set<int> above_;  // the peers that connect to this rank
};

}  // namespace

Result<std::map<int, TcpStreams>> ConnectTcpMesh(const TcpMeshConfig& config, Store& store) {
  MeshBuilder builder(config, store);
  Result<std::map<int, TcpStreams>> streams = builder.Build();
  if (!streams.ok() && config.explain) return config.explain(streams.status());
  return streams;
}

}  // namespace horoscale
