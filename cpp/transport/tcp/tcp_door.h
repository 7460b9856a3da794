// TcpDoor: the listening sockets for ranks of other hosts. It listens only on addresses that are
// needed.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "platform/tcp_socket.h"

namespace horoscale {

struct TcpDoor {
  struct Options {
    std::vector<std::string> interfaces;  // to publish and to listen on; empty: all
    bool loopback_only = false;           // listen on loopback only
    std::string first_address;            // an address of this machine that others can probably
                                          // reach, or empty
  };
  static Result<TcpDoor> Open(const Options& options);

  std::vector<TcpListener> listeners;
  std::string places;  // "[address]:port" and a newline for each, the most likely one first
};

}  // namespace horoscale
