// Reduce-scatter of inputs that all members can read: each member folds its rows straight from
// where the others have them. What isn't in shared memory is read, block by block, into the cache.
#pragma once

#include <memory>

#include "collectives/collective.h"

namespace horoscale {

bool MayBeDirect(const Exchange& exchange, const ReducescatterArgs& args);

// Asks the members where their inputs are. If not all can read them there, all go on with what
// `otherwise` makes of the arguments.
using ReducescatterMaker = std::unique_ptr<Collective> (*)(Exchange& exchange,
                                                           ReducescatterArgs args);
std::unique_ptr<Collective> MakeDirectReducescatter(Exchange& exchange, ReducescatterArgs args,
                                                    ReducescatterMaker otherwise);

}  // namespace horoscale
