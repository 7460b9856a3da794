// TcpDoor: where ranks of other hosts can reach this one. It listens only where that is needed.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "platform/tcp_socket.h"

namespace horoscale {

struct TcpDoor {
  struct Options {
    std::vector<std::string> interfaces;  // to be reached by, and to listen on; none: all
    bool loopback_only = false;           // listen on loopback alone
    std::string first_address;            // of this machine, that others probably reach, or empty
  };
  static Result<TcpDoor> Open(const Options& options);

  std::vector<TcpListener> listeners;
  std::string places;  // "[address]:port" and a newline for each, the likeliest first
};

}  // namespace horoscale
