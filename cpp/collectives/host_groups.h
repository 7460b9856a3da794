// The participants of an operation by the hosts that they are on: what hierarchical algorithms are
// laid out by. Hosts without a participant don't count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/exchange.h"

namespace horoscale {

class HostGroups {
 public:
  // `participants`: indices of members, sorted.
  HostGroups(const Exchange& exchange, std::span<const uint32_t> participants);

  uint32_t count() const { return static_cast<uint32_t>(members_.size()); }
  // The participants on a host, sorted. Hosts are in the order of Exchange::hosts().
  const std::vector<uint32_t>& members(uint32_t host) const { return members_[host]; }
  // Of a participant: the number of its host, and which of the host's participants it is.
  uint32_t HostOf(uint32_t member) const { return places_[member].host; }
  uint32_t PositionOf(uint32_t member) const { return places_[member].position; }
  // Who on the host works for a member that may be on another one. Every host spreads this work
  // over its participants; a member's representative on its own host is the member itself.
  uint32_t RepresentativeOf(uint32_t member, uint32_t host) const {
    return members_[host][PositionOf(member) % members_[host].size()];
  }
  // The fewest and the most participants on a host.
  uint32_t fewest() const;
  uint32_t most() const;

 private:
  struct Place {
    uint32_t host = 0;
    uint32_t position = 0;
  };
  std::vector<std::vector<uint32_t>> members_;
  std::vector<Place> places_;  // by member
};

}  // namespace horoscale
