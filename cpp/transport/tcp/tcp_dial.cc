#include "transport/tcp/tcp_dial.h"

#include <span>

#include "platform/tcp_socket.h"

namespace horoscale {
namespace {

// Limit per address, because one address may drop packets silently.
constexpr double kAddressSeconds = 3;

Status While(const std::string& doing, const Status& status) {
  return {status.code(), doing + ": " + status.message(), status.detail()};
}

}  // namespace

Result<TcpDial> TcpDial::Start(const HostPort& place, const TcpLinkTerms& terms, int peer,
                               const TcpHello& hello) {
  Result<ByteStream> stream = BeginConnectTcp(place.host, place.port);
  if (!stream.ok()) return While("connecting to " + place.host, stream.status());
  Result<Handshake> handshake = Handshake::Create(
      Handshake::Role::kClient, terms.secret, terms.AuthContext(peer), BetweenHosts(terms.encrypt));
  if (!handshake.ok()) return handshake.status();
  return TcpDial(stream.TakeValue(), handshake.TakeValue(), hello);
}

TcpDial::TcpDial(ByteStream stream, Handshake handshake, const TcpHello& hello)
    : stream_(std::move(stream)),
      handshake_(std::move(handshake)),
      hello_(hello),
      deadline_(Deadline::After(kAddressSeconds)) {}

Result<bool> TcpDial::Go() {
  if (phase_ == Phase::kConnecting) {
    const Result<bool> connected = Connect();
    if (!connected.ok()) return While("connecting to " + peer(), connected.status());
    if (!*connected) return false;
  }
  const auto proved = [this]() -> Result<bool> {
    if (phase_ == Phase::kProving) {
      const Result<bool> done = Prove();
      if (!done.ok() || !*done) return done;
    }
    return phase_ == Phase::kSecuring ? Greet() : true;
  }();
  if (!proved.ok()) return While("authenticating with " + peer(), proved.status());
  return proved;
}

Result<bool> TcpDial::Connect() {
  const Result<bool> connected = IsConnected(stream_);
  if (!connected.ok() || !*connected) return connected;
  phase_ = Phase::kProving;
  deadline_ = Deadline::After(kHandshakeSeconds);
  HS_RETURN_IF_ERROR(SendOutput());
  input_.resize(handshake_.wanted());
  return true;
}

Result<bool> TcpDial::Prove() {
  while (!handshake_.done()) {
    const Result<size_t> got = stream_.ReceiveSome(std::span(input_).subspan(received_));
    if (!got.ok()) return got.status();
    if (*got == 0) return false;
    received_ += *got;
    if (received_ < input_.size()) continue;
    const Status fed = handshake_.Feed(input_);
    HS_RETURN_IF_ERROR(SendOutput());
    HS_RETURN_IF_ERROR(fed);
    input_.resize(handshake_.wanted());
    received_ = 0;
  }
  HS_RETURN_IF_ERROR(handshake_.Protect(stream_));
  phase_ = Phase::kSecuring;
  return true;
}

Result<bool> TcpDial::Greet() {
  const Result<bool> secured = stream_.Handshake();
  if (!secured.ok() || !*secured) return secured;
  HS_RETURN_IF_ERROR(SendTcpHello(stream_, hello_, Deadline::After(0)));
  phase_ = Phase::kGreeted;
  return true;
}

// A few bytes, for which a socket has room.
Status TcpDial::SendOutput() {
  return stream_.SendAll(handshake_.TakeOutput(), Deadline::After(0));
}

}  // namespace horoscale
