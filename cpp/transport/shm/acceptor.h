// Acceptor: lets in who proves the job's secret.
//
// Anybody on the host can connect to an abstract socket. Connections are authenticated side by
// side, so that one that says nothing keeps nobody waiting; strangers are dropped and logged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "platform/poller.h"
#include "platform/unix_socket.h"
#include "rendezvous/auth.h"

namespace horoscale {

class Acceptor {
 public:
  // `context` as in rendezvous/auth.h. The listener outlives the acceptor.
  static Result<Acceptor> Create(UnixListener* listener, std::string secret, std::string context);

  // The next connection of a process of our user that has proved the secret; kTimeout if none
  // comes.
  Result<ByteStream> Next(const Deadline& deadline);

 private:
  struct Guest {
    ByteStream stream;
    Handshake handshake;
    std::vector<std::byte> input;
    size_t received = 0;
  };

  Acceptor(UnixListener* listener, std::string secret, std::string context, Poller poller);
  Status AcceptGuest();
  // Reads what a guest has sent; whether its handshake is done.
  Result<bool> Hear(Guest& guest);
  void Drop(uint64_t id, const Status& why);

  UnixListener* listener_;
  std::string secret_;
  std::string context_;
  Poller poller_;
  std::map<uint64_t, Guest> guests_;  // in order of arrival
  uint64_t next_id_ = 1;              // 0 is the listener
  int refused_ = 0;
};

}  // namespace horoscale
