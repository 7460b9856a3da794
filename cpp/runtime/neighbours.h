// Neighbours: determines which ranks share memory. Host names are not sufficient, because
// containers, users and machines may have the same one. So a rank tries to connect to the lower
// ranks that report the same host name. Ranks that it can't connect to are treated as being on
// another host, and are reached over TCP.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "platform/unix_socket.h"

namespace horoscale {

class Neighbours {
 public:
  static Result<Neighbours> Create();

  // The data that ranks with the same host name need to connect to this rank. Valid during the
  // lifetime of this object.
  const std::string& card() const { return listener_.name(); }

  // The lowest rank that shares memory with this one, possibly this rank itself. `cards` are those
  // of the ranks with this host name. `why_not` receives the reason if it is this rank although
  // lower ranks have the same name.
  static int FindLowest(const std::map<int, std::string>& cards, int rank, std::string_view host,
                        const Deadline& deadline, std::string* why_not);

 private:
  explicit Neighbours(UnixListener listener) : listener_(std::move(listener)) {}
  UnixListener listener_;  // connections are never accepted: connecting is the whole test
};

// Returns for each rank a text that is equal exactly for ranks of one host. `lowest` is the result
// of FindLowest() on each rank; kProtocol if it is inconsistent.
Result<std::vector<std::string>> HostsOf(std::span<const int> lowest);

}  // namespace horoscale
