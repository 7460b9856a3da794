// Allreduce of participants on several hosts whose sums travel in a lossy encoding.
#pragma once

#include <memory>

#include "collectives/collective.h"
#include "collectives/host_groups.h"

namespace horoscale {

// Whether there is an encoding for sums of this kind: a lossy one, and all members take part. What
// was lost can't be found again where others fold.
bool MayEncode(const AllreduceArgs& args);

// `hosts`: all members, on two hosts or more. There is something to reduce.
std::unique_ptr<Collective> MakeEncodedAllreduce(Exchange& exchange, HostGroups hosts,
                                                 AllreduceArgs args);

}  // namespace horoscale
