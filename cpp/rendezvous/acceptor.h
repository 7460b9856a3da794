// Acceptor: lets in who proves the job's secret.
//
// Anybody on the host can connect to an abstract socket, anybody in the network to a port.
// Connections are authenticated side by side, so that one that says nothing keeps nobody waiting;
// strangers are dropped and logged.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "platform/poller.h"
#include "rendezvous/auth.h"

namespace horoscale {

class Acceptor {
 public:
  // Takes a connection that waits at the listener: kTimeout if it has gone again,
  // kUnauthenticated if it may not even prove anything.
  using Accept = std::function<Result<ByteStream>()>;

  // `listener` is readable when a connection waits, and outlives the acceptor; `context` as in
  // rendezvous/auth.h.
  static Result<Acceptor> Create(int listener, Accept accept, std::string secret,
                                 std::string context);

  // The next connection that has proved the secret; kTimeout if none comes. `look`, unless it is
  // empty, is called every kLookSeconds while nobody has: its error ends the wait.
  static constexpr double kLookSeconds = 0.25;
  Result<ByteStream> Next(const Deadline& deadline, const std::function<Status()>& look = nullptr);

 private:
  struct Guest {
    ByteStream stream;
    Handshake handshake;
    std::vector<std::byte> input;
    size_t received = 0;
  };

  Acceptor(Accept accept, std::string secret, std::string context, Poller poller);
  Status AcceptGuest();
  // Reads what a guest has sent; whether its handshake is done.
  Result<bool> Hear(Guest& guest);
  void Drop(uint64_t id, const Status& why);
  void Refused(const Status& why);

  Accept accept_;
  std::string secret_;
  std::string context_;
  Poller poller_;
  std::map<uint64_t, Guest> guests_;  // in order of arrival
  uint64_t next_id_ = 1;              // 0 is the listener
  int refused_ = 0;
};

}  // namespace horoscale
