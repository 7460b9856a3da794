// Neighbours: which ranks share memory. A host's name does not tell: containers, users and machines
// may have the same one. So a rank tries to reach the lower ranks that give their host the same
// name as it does; those that it can't reach are on another host, and reached over TCP.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "platform/unix_socket.h"

namespace horoscale {

class Neighbours {
 public:
  static Result<Neighbours> Create(std::string_view host);

  // What the others have to know of this rank, while this object lives.
  const std::string& card() const { return card_; }

  // The lowest rank that shares memory with this one, which may be this one itself. `cards` are
  // those of all ranks. `why_not` gets why it is this one although others have the name.
  static int FindLowest(std::span<const std::string> cards, int rank, const Deadline& deadline,
                        std::string* why_not);

 private:
  Neighbours(UnixListener listener, std::string card)
      : listener_(std::move(listener)), card_(std::move(card)) {}
  UnixListener listener_;  // nobody is let in: that there is a connection is enough
  std::string card_;
};

// By rank, a text that is the same for ranks of one host only. `lowest` is what FindLowest() gave
// each rank; kProtocol if that can't be.
Result<std::vector<std::string>> HostsOf(std::span<const std::string> cards,
                                         std::span<const int> lowest);

}  // namespace horoscale
