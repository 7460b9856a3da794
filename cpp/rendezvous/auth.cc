#include "rendezvous/auth.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "platform/random.h"
#include "platform/tls_layer.h"
#include "rendezvous/session_keys.h"

namespace horoscale {
namespace {

constexpr std::string_view kMagic = "HOROAUTH";
constexpr size_t kHelloBytes =
    kMagic.size() + sizeof(uint32_t) + sizeof(Protection) + Handshake::kNonceBytes;
constexpr std::byte kAccepted{1};
constexpr std::byte kRefused{0};

template <typename Range>
void Append(std::vector<std::byte>& bytes, const Range& more) {
  bytes.insert(bytes.end(), std::begin(more), std::end(more));
}

Status WrongSecret() {
  return Status::Unauthenticated(
      "the two processes have different secrets, or belong to different jobs: set the same "
      "HOROSCALE_SECRET or HOROSCALE_SECRET_FILE for every process of the job");
}

Status OtherProtection(Protection own) {
  const bool encrypts = own == Protection::kEncrypted;
  return Status::InvalidArgument(
      std::string("this process has HOROSCALE_ENCRYPT=") + (encrypts ? "1" : "0") +
      ", the peer does not: use the same setting for every process of the job and for the process "
      "that serves its rendezvous (horoscalerun --encrypt does this)");
}

}  // namespace

Handshake::Handshake(Role role, std::string_view secret, std::string_view context,
                     Protection protection, const Nonce& nonce)
    : role_(role), secret_(secret), context_(context), protection_(protection), own_nonce_(nonce) {
  if (role_ == Role::kClient) SendHello();
}

Result<Handshake> Handshake::Create(Role role, std::string_view secret, std::string_view context,
                                    Protection protection) {
  Nonce nonce;
  HS_RETURN_IF_ERROR(FillRandom(nonce));
  return Handshake(role, secret, context, protection, nonce);
}

Status Handshake::Protect(ByteStream& stream) const {
  if (!done()) return Status::Internal("the connection has not been authenticated");
  if (protection_ == Protection::kNone) return Status::Ok();
  const SessionKeys keys = DeriveSessionKeys(secret_, Nonces(), context_);
  const bool is_client = role_ == Role::kClient;
  if (protection_ == Protection::kEncrypted) {
    const auto role = is_client ? TlsLayer::Role::kClient : TlsLayer::Role::kServer;
    auto layer = TlsLayer::Create(role, stream.fd(), stream.peer(), keys.tls);
    if (!layer.ok()) return layer.status();
    stream.SetLayer(layer.TakeValue());
    return Status::Ok();
  }
  stream.set_message_keys({.send = is_client ? keys.client_to_server : keys.server_to_client,
                           .receive = is_client ? keys.server_to_client : keys.client_to_server});
  return Status::Ok();
}

size_t Handshake::wanted() const {
  switch (step_) {
    case Step::kHello:
      return kHelloBytes;
    case Step::kVerdict:
      return 1;
    case Step::kClientProof:
    case Step::kServerProof:
      return sizeof(Sha256Digest);
    case Step::kDone:
    case Step::kFailed:
      break;
  }
  return 0;
}

Status Handshake::Feed(std::span<const std::byte> bytes) {
  if (step_ == Step::kDone || step_ == Step::kFailed || bytes.size() != wanted()) {
    return Status::Internal("handshake data out of order");
  }
  Status status;
  switch (step_) {
    case Step::kHello:
      status = FeedHello(bytes);
      break;
    case Step::kClientProof:
      status = FeedClientProof(bytes);
      break;
    case Step::kVerdict:
      status = FeedVerdict(bytes[0]);
      break;
    default:
      status = FeedServerProof(bytes);
      break;
  }
  if (!status.ok()) step_ = Step::kFailed;
  return status;
}

std::vector<std::byte> Handshake::TakeOutput() { return std::exchange(output_, {}); }

void Handshake::SendHello() {
  Append(output_, AsBytes(kMagic));
  for (int shift = 0; shift < 32; shift += 8) {
    output_.push_back(static_cast<std::byte>(kAuthVersion >> shift));
  }
  output_.push_back(static_cast<std::byte>(protection_));
  Append(output_, own_nonce_);
}

Status Handshake::FeedHello(std::span<const std::byte> bytes) {
  const std::span<const std::byte> magic = AsBytes(kMagic);
  if (!std::equal(magic.begin(), magic.end(), bytes.begin())) {
    return Status::Protocol("it does not speak horoscale's protocol");
  }
  uint32_t version = 0;
  for (size_t i = 0; i < sizeof(version); ++i) {
    version |= std::to_integer<uint32_t>(bytes[magic.size() + i]) << (8 * i);
  }
  // Also sent to a peer with another version, so that it can report the same error.
  if (role_ == Role::kServer) SendHello();
  if (version != kAuthVersion) {
    return Status::Protocol(
        "it speaks version " + std::to_string(version) + " of the protocol, this process version " +
        std::to_string(kAuthVersion) + ": install the same version of horoscale everywhere");
  }
  if (bytes[magic.size() + sizeof(version)] != static_cast<std::byte>(protection_)) {
    return OtherProtection(protection_);
  }
  std::copy_n(bytes.end() - kNonceBytes, kNonceBytes, peer_nonce_.begin());
  if (role_ == Role::kClient) {
    Append(output_, Proof(Role::kClient));
    step_ = Step::kVerdict;
  } else {
    step_ = Step::kClientProof;
  }
  return Status::Ok();
}

Status Handshake::FeedClientProof(std::span<const std::byte> bytes) {
  if (!IsProof(Role::kClient, bytes)) {
    output_.push_back(kRefused);
    return WrongSecret();
  }
  output_.push_back(kAccepted);
  Append(output_, Proof(Role::kServer));
  step_ = Step::kDone;
  return Status::Ok();
}

Status Handshake::FeedVerdict(std::byte verdict) {
  if (verdict == kRefused) return WrongSecret();
  if (verdict != kAccepted) return Status::Protocol("it sent an unknown authentication result");
  step_ = Step::kServerProof;
  return Status::Ok();
}

Status Handshake::FeedServerProof(std::span<const std::byte> bytes) {
  if (!IsProof(Role::kServer, bytes)) return WrongSecret();
  step_ = Step::kDone;
  return Status::Ok();
}

// The client's and the server's.
std::vector<std::byte> Handshake::Nonces() const {
  std::vector<std::byte> nonces;
  Append(nonces, role_ == Role::kClient ? own_nonce_ : peer_nonce_);
  Append(nonces, role_ == Role::kClient ? peer_nonce_ : own_nonce_);
  return nonces;
}

Sha256Digest Handshake::Proof(Role prover) const {
  // Everything but the context, which comes last, has a fixed size: different inputs can't be
  // confused.
  std::vector<std::byte> message;
  Append(message, AsBytes(prover == Role::kClient ? "client" : "server"));
  message.push_back(static_cast<std::byte>(protection_));
  Append(message, Nonces());
  Append(message, AsBytes(context_));
  return HmacSha256(AsBytes(secret_), message);
}

bool Handshake::IsProof(Role prover, std::span<const std::byte> bytes) const {
  Sha256Digest given;
  std::copy(bytes.begin(), bytes.end(), given.begin());
  return ConstantTimeEqual(given, Proof(prover));
}

namespace {

Status Drive(ByteStream& stream, Handshake& handshake, const Deadline& deadline) {
  std::array<std::byte, kHelloBytes> buffer;
  static_assert(kHelloBytes >= sizeof(Sha256Digest));
  Status status;
  while (true) {
    const std::vector<std::byte> output = handshake.TakeOutput();
    Status sent = stream.SendAll(output, deadline);
    if (!status.ok()) return status;
    HS_RETURN_IF_ERROR(sent);
    if (handshake.done()) return Status::Ok();
    const std::span<std::byte> input = std::span(buffer).first(handshake.wanted());
    HS_RETURN_IF_ERROR(stream.ReceiveAll(input, deadline));
    status = handshake.Feed(input);
  }
}

Status Authenticate(ByteStream& stream, Handshake::Role role, std::string_view secret,
                    std::string_view context, Protection protection, const Deadline& deadline) {
  Result<Handshake> handshake = Handshake::Create(role, secret, context, protection);
  if (!handshake.ok()) return handshake.status();
  Status status = Drive(stream, *handshake, deadline);
  if (status.ok()) status = handshake->Protect(stream);
  if (status.ok()) status = stream.FinishHandshake(deadline);
  if (status.ok()) return status;
  return Status(status.code(), "authenticating with " + stream.peer() + ": " + status.message());
}

}  // namespace

Status AuthenticateToServer(ByteStream& stream, std::string_view secret, std::string_view context,
                            Protection protection, const Deadline& deadline) {
  return Authenticate(stream, Handshake::Role::kClient, secret, context, protection, deadline);
}

Status AuthenticateClient(ByteStream& stream, std::string_view secret, std::string_view context,
                          Protection protection, const Deadline& deadline) {
  return Authenticate(stream, Handshake::Role::kServer, secret, context, protection, deadline);
}

}  // namespace horoscale
