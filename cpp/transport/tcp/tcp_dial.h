// TcpDial: one outgoing stream of a link between hosts. Non-blocking: it connects, authenticates
// and sends its hello.
//
//     dial = TcpDial::Start(place, …);  when its socket is ready: while (!*dial.Go()) wait;
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "rendezvous/address.h"
#include "rendezvous/auth.h"
#include "transport/tcp/tcp_hello.h"

namespace horoscale {

// The parameters that both sides of a link share.
struct TcpLinkTerms {
  int rank = 0;            // this rank
  std::string key_prefix;  // of the job and its round, such as "init1/"
  std::string secret;
  bool encrypt = false;         // the same on all
  double silence_seconds = 30;  // a link is closed if the peer's machine does not respond for this
                                // time
  uint32_t data_streams = 1;    // per pair of ranks; the same on all ranks

  std::string AuthContext(int server) const {
    return "tcp link to rank " + std::to_string(server) + " of " + key_prefix;
  }
  TcpHello Hello(size_t stream, uint32_t attempt) const {
    TcpHello hello;
    hello.rank = rank;
    hello.stream = static_cast<uint16_t>(stream);
    hello.data_streams = static_cast<uint16_t>(data_streams);
    hello.attempt = attempt;
    return hello;
  }
};

class TcpDial {
 public:
  static Result<TcpDial> Start(const HostPort& place, const TcpLinkTerms& terms, int peer,
                               const TcpHello& hello);

  int fd() const { return stream_.fd(); }
  // Proceeds as far as possible without waiting; returns whether the hello has been sent.
  Result<bool> Go();
  // The time limit for the peer's responses.
  const Deadline& deadline() const { return deadline_; }
  // Whether the connection was accepted, at least by the peer's kernel.
  bool is_connected() const { return phase_ != Phase::kConnecting; }
  const std::string& peer() const { return stream_.peer(); }
  ByteStream TakeStream() { return std::move(stream_); }

 private:
  enum class Phase : uint8_t { kConnecting, kProving, kSecuring, kGreeted };

  TcpDial(ByteStream stream, Handshake handshake, const TcpHello& hello);
  Result<bool> Connect();
  Result<bool> Prove();
  Result<bool> Greet();
  Status SendOutput();

  ByteStream stream_;
  Handshake handshake_;
  TcpHello hello_;
  Phase phase_ = Phase::kConnecting;
  std::vector<std::byte> input_;
  size_t received_ = 0;
  Deadline deadline_;
};

}  // namespace horoscale
