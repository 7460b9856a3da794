// Mutual authentication of two processes by a shared secret that never travels.
//
//     client                                      server
//       magic, version, how, nonce c  ──────────▶
//                                     ◀──────────   magic, version, how, nonce s
//       HMAC("client", how, c, s, ctx) ─────────▶
//                                     ◀──────────   accepted, HMAC("server", how, c, s, ctx)
//                                                   or refused
//
// Nonces are new for every connection, so a recorded proof is worth nothing; the roles differ, so a
// proof can't be sent back to its maker; the context says what the connection is for ("store",
// "link 3 5"), so a proof for one purpose is none for another. The client proves first: a stranger
// who connects gets nothing from the server that a secret could be guessed against.
//
// "how" is the protection of what follows, on which both have to agree. Its keys come from the
// secret and both nonces (session_keys.h): somebody who passes the handshake on learns nothing.
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
// How long either side waits for the other: who is slower may try again.
inline constexpr double kHandshakeSeconds = 5;

// Whether a client that failed so to authenticate should try again: a server that is crowded by
// strangers drops connections before they have proved anything, or is slow.
inline bool MayBeLetInLater(const Status& failure) {
  return failure.code() == StatusCode::kSystem || failure.code() == StatusCode::kTimeout;
}

// What protects a connection after the handshake. The values are the wire's.
enum class Protection : uint8_t {
  kNone = 0,           // nothing: for sockets that nobody but the two can reach
  kAuthenticated = 1,  // what is changed on the way is found out; by those who send and receive
                       // messages, with ByteStream::message_keys()
  kEncrypted = 2,      // TLS 1.3, for everything: ENCRYPT
};

// Between hosts there is always one of the two.
constexpr Protection BetweenHosts(bool encrypt) {
  return encrypt ? Protection::kEncrypted : Protection::kAuthenticated;
}

// One side of the challenge without its I/O: bytes of the peer in, bytes for the peer out.
class Handshake {
 public:
  enum class Role : uint8_t { kClient, kServer };
  static constexpr size_t kNonceBytes = 32;
  using Nonce = std::array<std::byte, kNonceBytes>;

  // `nonce` must be random and never used before.
  Handshake(Role role, std::string_view secret, std::string_view context, Protection protection,
            const Nonce& nonce);
  // With a nonce of its own.
  static Result<Handshake> Create(Role role, std::string_view secret, std::string_view context,
                                  Protection protection);

  bool done() const { return step_ == Step::kDone; }

  // Has the stream of a handshake that is done protected from now on. The next to send is the
  // client, which finishes TLS's own handshake first.
  Status Protect(ByteStream& stream) const;

  // How many bytes of the peer the next step takes, 0 when done. Never more may be read: what
  // follows isn't the handshake's.
  size_t wanted() const;

  // Takes exactly wanted() bytes. kUnauthenticated: wrong secret or context. kProtocol: the peer
  // speaks something else. kInvalidArgument: it has other settings of ENCRYPT. After an error the
  // output is still to be sent; the peer learns from it.
  Status Feed(std::span<const std::byte> bytes);

  // What is to be sent before anything else is awaited. Emptied by the call.
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
