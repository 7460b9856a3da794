// Reduce-scatter of members on several hosts: reduced in the host, then sent to the owner. Of the
// bytes that a member owns each other host sends one sum.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/collective.h"
#include "collectives/host_groups.h"
#include "collectives/segment_map.h"

namespace horoscale {

// `streams[m]` is what member m owns: where it is in this member's input, and, of the own one,
// where the result goes. `hosts`: all members, on two hosts or more.
std::unique_ptr<Collective> MakeHostsReducescatter(Exchange& exchange, HostGroups hosts,
                                                   const Reduction& reduction,
                                                   std::optional<DataType> wire,
                                                   std::vector<SegmentMap> streams);

// How streams are cut, one for each member: a chunk holds a piece of each that isn't empty.
struct Pieces {
  int64_t bytes;
  int64_t chunks;
};
Pieces PiecesOf(const Exchange& exchange, std::span<const SegmentMap> streams);

}  // namespace horoscale
