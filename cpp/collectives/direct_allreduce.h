// Allreduce and reduce into memory that every member can reach: of tensors that are in place, no
// copy at all.
//
// Each member owns a slice. It folds the slice straight from all members' tensors into its own and
// from there, while it is in the cache, into the others': of n members' tensors each byte is read
// once and written once. Two rounds without chunks bracket it: "where my tensors are, and they are
// ready", and "my slice is done". A member whose tensors are elsewhere copies the others' slices to
// where its results go before the first; its own slice it folds from where it is. To a root's
// tensors alone the slices of a reduce are copied, from a block of the folder's own.
#pragma once

#include <memory>

#include "collectives/collective.h"

namespace horoscale {

// Whether asking pays: the question costs a round, which small messages feel.
bool MayBeDirect(const Exchange& exchange, const AllreduceArgs& args, int64_t bytes);

// Asks the members where their tensors are. If any of them can't be reached, all of them go on with
// what `otherwise` makes of the arguments.
using AllreduceMaker = std::unique_ptr<Collective> (*)(Exchange& exchange, AllreduceArgs args);
std::unique_ptr<Collective> MakeDirectAllreduce(Exchange& exchange, AllreduceArgs args,
                                                AllreduceMaker otherwise);

}  // namespace horoscale
