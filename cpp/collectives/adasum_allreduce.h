// Allreduce by Adasum: see adasum.h for the arithmetic and adasum_stages.h for who combines what.
#pragma once

#include <memory>

#include "collectives/collective.h"

namespace horoscale {

// Each segment is a tensor of its own. Members that are absent take part with zeros.
// args.reduction.group divides the number of members.
std::unique_ptr<Collective> MakeAdasumAllreduce(Exchange& exchange, AllreduceArgs args);

}  // namespace horoscale
