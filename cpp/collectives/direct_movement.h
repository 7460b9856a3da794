// What allgather, alltoall and broadcast do where members can read each other's memory: everybody
// takes what it needs from where the others have it to where its result goes. Each byte is copied
// once, by its reader, and nobody waits for anybody until all is read.
#pragma once

#include <memory>
#include <vector>

#include "collectives/collective.h"
#include "collectives/member_memory.h"

namespace horoscale {

struct MovementArgs {
  std::vector<Move> moves;        // from other members
  std::vector<Segment> own;       // of this member's input to its result
  std::vector<uint32_t> readers;  // members that read from this one
};
std::unique_ptr<Collective> MakeDirectMovement(Exchange& exchange, MovementArgs args);

// Broadcast: asks where the root's bytes are. If not all can read them there, all go on with what
// `otherwise` makes of the arguments.
bool MayBeDirect(const Exchange& exchange, const BroadcastArgs& args, int64_t bytes);
using BroadcastMaker = std::unique_ptr<Collective> (*)(Exchange& exchange, BroadcastArgs args);
std::unique_ptr<Collective> MakeDirectBroadcast(Exchange& exchange, BroadcastArgs args,
                                                BroadcastMaker otherwise);

}  // namespace horoscale
