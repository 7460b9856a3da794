// Reduce-scatter of inputs in memory that all members can reach: each member folds its rows
// straight from where the others have them.
#pragma once

#include <memory>

#include "collectives/collective.h"

namespace horoscale {

bool MayBeDirect(const Exchange& exchange, const ReducescatterArgs& args);

// Asks the members where their inputs are. If any of them is elsewhere, all go on with what
// `otherwise` makes of the arguments.
using ReducescatterMaker = std::unique_ptr<Collective> (*)(Exchange& exchange,
                                                           ReducescatterArgs args);
std::unique_ptr<Collective> MakeDirectReducescatter(Exchange& exchange, ReducescatterArgs args,
                                                    ReducescatterMaker otherwise);

}  // namespace horoscale
