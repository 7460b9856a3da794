#include "rendezvous/auth.h"

#include <algorithm>
#include <array>

#include "platform/random.h"

namespace horoscale {
namespace {

constexpr std::string_view kMagic = "HOROAUTH";
constexpr size_t kHelloBytes = kMagic.size() + sizeof(uint32_t) + Handshake::kNonceBytes;
constexpr std::byte kAccepted{1};
constexpr std::byte kRefused{0};

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename Range>
void Append(std::vector<std::byte>& bytes, const Range& more) {
  bytes.insert(bytes.end(), std::begin(more), std::end(more));
}

Status WrongSecret() {
  return Status::Unauthenticated(
      "the two sides have different secrets, or belong to different jobs: give every process of "
      "the job the same HOROSCALE_SECRET or HOROSCALE_SECRET_FILE");
}

}  // namespace

Handshake::Handshake(Role role, std::string_view secret, std::string_view context,
                     const Nonce& nonce)
    : role_(role), secret_(secret), context_(context), own_nonce_(nonce) {
  if (role_ == Role::kClient) SendHello();
}

Result<Handshake> Handshake::Create(Role role, std::string_view secret, std::string_view context) {
  Nonce nonce;
  HS_RETURN_IF_ERROR(FillRandom(nonce));
  return Handshake(role, secret, context, nonce);
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
    return Status::Internal("handshake fed out of step");
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
  // Also to a peer of another version, so that it can say the same.
  if (role_ == Role::kServer) SendHello();
  if (version != kAuthVersion) {
    return Status::Protocol(
        "it speaks version " + std::to_string(version) + " of the protocol, this process version " +
        std::to_string(kAuthVersion) + ": install the same horoscale everywhere");
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
  if (verdict != kAccepted) return Status::Protocol("it sent an unknown verdict");
  step_ = Step::kServerProof;
  return Status::Ok();
}

Status Handshake::FeedServerProof(std::span<const std::byte> bytes) {
  if (!IsProof(Role::kServer, bytes)) return WrongSecret();
  step_ = Step::kDone;
  return Status::Ok();
}

Sha256Digest Handshake::Proof(Role prover) const {
  const bool is_client = role_ == Role::kClient;
  // Everything but the context, which comes last, has a fixed size: no two inputs look alike.
  std::vector<std::byte> message;
  Append(message, AsBytes(prover == Role::kClient ? "client" : "server"));
  Append(message, is_client ? own_nonce_ : peer_nonce_);
  Append(message, is_client ? peer_nonce_ : own_nonce_);
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
                    std::string_view context, const Deadline& deadline) {
  Result<Handshake> handshake = Handshake::Create(role, secret, context);
  if (!handshake.ok()) return handshake.status();
  const Status status = Drive(stream, *handshake, deadline);
  if (status.ok()) return status;
  return Status(status.code(), "authenticating with " + stream.peer() + ": " + status.message());
}

}  // namespace

Status AuthenticateToServer(ByteStream& stream, std::string_view secret, std::string_view context,
                            const Deadline& deadline) {
  return Authenticate(stream, Handshake::Role::kClient, secret, context, deadline);
}

Status AuthenticateClient(ByteStream& stream, std::string_view secret, std::string_view context,
                          const Deadline& deadline) {
  return Authenticate(stream, Handshake::Role::kServer, secret, context, deadline);
}

}  // namespace horoscale
