// TcpDial: one stream of a link between hosts that this rank makes, without ever waiting: it
// connects, authenticates and says hello.
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

// What both sides of a link have in common.
struct TcpLinkTerms {
  int rank = 0;            // the own one
  std::string key_prefix;  // of the job and its round, such as "init1/"
  std::string secret;
  bool encrypt = false;         // the same on all
  double silence_seconds = 30;  // by then a link has ended whose peer's machine does not answer
  uint32_t data_streams = 1;    // of a pair of ranks; the same on all

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
  // As far as it goes without waiting; whether the hello has been sent.
  Result<bool> Go();
  // Until then the other side may be silent.
  const Deadline& deadline() const { return deadline_; }
  // Whether there was an answer to the connection, if only of the peer's kernel.
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
