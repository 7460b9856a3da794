// Neighbours: which ranks share memory. A host's name does not tell: containers, users and machines
// may have the same one. So a rank tries to reach the lower ranks that give their host the same
// name as it does; those that it can't reach are on another host, and reached over TCP.
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

  // What the ranks whose hosts have the same name have to know of this rank, while this object
  // lives.
  const std::string& card() const { return listener_.name(); }

  // The lowest rank that shares memory with this one, which may be this one itself. `cards` are
  // those of the ranks that give their host this name. `why_not` gets why it is this one although
  // others have the name.
  static int FindLowest(const std::map<int, std::string>& cards, int rank, std::string_view host,
                        const Deadline& deadline, std::string* why_not);

 private:
  explicit Neighbours(UnixListener listener) : listener_(std::move(listener)) {}
  UnixListener listener_;  // nobody is let in: that there is a connection is enough
};

// By rank, a text that is the same for ranks of one host only. `lowest` is what FindLowest() gave
// each rank; kProtocol if that can't be.
Result<std::vector<std::string>> HostsOf(std::span<const int> lowest);

}  // namespace horoscale
