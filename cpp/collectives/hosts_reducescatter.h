// Reduce-scatter of members on several hosts: reduced in the host, then sent to the owner. Of the
// bytes that a member owns each other host sends one sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/collective.h"
#include "collectives/host_groups.h"
#include "collectives/round_loop.h"
#include "collectives/segment_map.h"

namespace horoscale {

// `streams[m]` is what member m owns: where it is in this member's input, and, of the own one,
// where the result goes. `hosts`: the participants, on two hosts or more. The member itself may be
// absent; absent ones own nothing.
std::unique_ptr<Collective> MakeHostsReducescatter(Exchange& exchange, HostGroups hosts,
                                                   std::vector<uint32_t> participants,
                                                   const Reduction& reduction,
                                                   std::optional<DataType> wire,
                                                   std::vector<SegmentMap> streams);

// How streams are cut, one for each owner: a chunk holds a piece of each that isn't empty. Where it
// hasn't room for so many, the owners form groups, each with chunks of its own.
struct Pieces {
  int64_t bytes = 0;
  int64_t groups = 1;
  int64_t group_owners = 1;
  int64_t chunks = 0;  // of all groups

  int64_t GroupOf(uint32_t owner) const { return groups > 1 ? owner / group_owners : 0; }
  // What a chunk has of an owner's stream of so many bytes.
  ByteRange Of(int64_t chunk, uint32_t owner, int64_t stream_bytes) const {
    if (GroupOf(owner) != chunk % groups) return {};
    const int64_t first = chunk / groups * bytes;
    return {first, std::clamp(stream_bytes - first, int64_t{0}, bytes)};
  }
};
Pieces PiecesOf(const Exchange& exchange, std::span<const SegmentMap> streams);

}  // namespace horoscale
