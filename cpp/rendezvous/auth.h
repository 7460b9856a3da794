// Mutual authentication of two processes with a shared secret that is never transmitted.
//
//     client                                      server
//       magic, version, how, nonce c  ──────────▶
//                                     ◀──────────   magic, version, how, nonce s
//       HMAC("client", how, c, s, ctx) ─────────▶
//                                     ◀──────────   accepted, HMAC("server", how, c, s, ctx)
//                                                   or refused
//
// Nonces are fresh for every connection, so a recorded proof is useless. The roles differ, so a
// proof can't be reflected to its sender. The context identifies the purpose of the connection
// ("store", "link 3 5"), so a proof for one purpose is not valid for another. The client proves
// first, so that an attacker who connects gets nothing from the server to test guesses of the
// secret against.
//
// "how" is the protection of the following data, on which both must agree. Its keys are derived
// from the secret and both nonces (session_keys.h), so an attacker who relays the handshake learns
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "rendezvous/sha256.h"

namespace horoscale {

inline constexpr uint32_t kAuthVersion = 2;
// How long either side waits for the other; a slower peer may try again.
inline constexpr double kHandshakeSeconds = 5;

// Whether a client should try again after this authentication failure: an overloaded server is slow
// or drops unauthenticated connections.
inline bool MayBeLetInLater(const Status& failure) {
  return failure.code() == StatusCode::kSystem || failure.code() == StatusCode::kTimeout;
}

// The protection of a connection after the handshake. The values are sent over the wire.
enum class Protection : uint8_t {
  kNone = 0,           // none: for sockets that only the two peers can access
  kAuthenticated = 1,  // modifications are detected by the senders and receivers of messages, with
                       // ByteStream::message_keys()
  kEncrypted = 2,      // TLS 1.3 for all data (ENCRYPT)
};

// Connections between hosts always use one of the two.
constexpr Protection BetweenHosts(bool encrypt) {
  return encrypt ? Protection::kEncrypted : Protection::kAuthenticated;
}

// One side of the handshake, without I/O: consumes bytes from the peer and produces bytes for it.
class Handshake {
 public:
  enum class Role : uint8_t { kClient, kServer };
  static constexpr size_t kNonceBytes = 32;
  using Nonce = std::array<std::byte, kNonceBytes>;

  // `nonce` must be random and fresh.
  Handshake(Role role, std::string_view secret, std::string_view context, Protection protection,
            const Nonce& nonce);
  // Generates the nonce.
  static Result<Handshake> Create(Role role, std::string_view secret, std::string_view context,
                                  Protection protection);

  bool done() const { return step_ == Step::kDone; }

  // Protects the stream after a complete handshake. The client sends next, after TLS's own
  // handshake.
  Status Protect(ByteStream& stream) const;

  // The number of bytes that the next step needs from the peer; 0 when done. Callers must not read
  // more, because later data is not part of the handshake.
  size_t wanted() const;

  // Consumes exactly wanted() bytes. kUnauthenticated: wrong secret or context. kProtocol: the peer
  // uses another protocol. kInvalidArgument: its ENCRYPT setting differs. The output must be sent
  // even after an error, to inform the peer.
  Status Feed(std::span<const std::byte> bytes);

  // Returns and clears the output that must be sent before the next bytes are awaited.
  std::vector<std::byte> TakeOutput();

 private:
  enum class Step : uint8_t { kHello, kClientProof, kVerdict, kServerProof, kDone, kFailed };

  Status FeedHello(std::span<const std::byte> bytes);
  Status FeedClientProof(std::span<const std::byte> bytes);
  Status FeedVerdict(std::byte verdict);
  Status FeedServerProof(std::span<const std::byte> bytes);
  void SendHello();
  std::vector<std::byte> Nonces() const;
  Sha256Digest Proof(Role prover) const;
  bool IsProof(Role prover, std::span<const std::byte> bytes) const;

  Role role_;
  Step step_ = Step::kHello;
  std::string secret_;
  std::string context_;
  Protection protection_;
  Nonce own_nonce_;
  Nonce peer_nonce_{};
  std::vector<std::byte> output_;
};

// Authenticates a connection, blocking until the deadline, and protects it. Both name the peer in
// their errors: kUnauthenticated, kProtocol, kInvalidArgument, kTimeout, or kSystem if the
// connection broke.
Status AuthenticateToServer(ByteStream& stream, std::string_view secret, std::string_view context,
                            Protection protection, const Deadline& deadline);
Status AuthenticateClient(ByteStream& stream, std::string_view secret, std::string_view context,
                          Protection protection, const Deadline& deadline);

}  // namespace horoscale
