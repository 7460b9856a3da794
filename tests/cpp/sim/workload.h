// The submissions of a simulated set's members: steps over a pool of tensors, in a different order
// on each member, with changing shapes, contradictory requests, and members that join early.
#pragma once

#include <cstdint>
#include <vector>

#include "core/request.h"
#include "sim/random.h"

namespace horoscale::sim {

// One operation of the set, as one member submits it.
struct Submission {
  uint64_t operation = 0;  // the same number on all members
  Request request;
};

// The submissions between two joins, by member, in order.
using Epoch = std::vector<std::vector<Submission>>;

struct WorkloadOptions {
  bool joins = false;
  bool mismatches = false;
  bool shapes_change = false;
};

std::vector<Epoch> MakeWorkload(Random& random, const WorkloadOptions& options,
                                const std::vector<int>& ranks);

}  // namespace horoscale::sim
