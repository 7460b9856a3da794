// The operations of a random job: collectives of its process sets, and messages within them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/operation.h"
#include "sim/random.h"

namespace horoscale::sim {

// One operation of a set, as each of `callers` submits it.
struct Plan {
  std::vector<int> ranks;    // of the set
  std::vector<int> callers;  // sorted: all of `ranks`, or the two ends of a message
  std::string name;
  OpKind kind = OpKind::kAllreduce;  // of an operation
  int root = 0;
  int count = 0;         // of floats
  bool is_last = false;  // submitted when all others are done
  // For a message: the sender.
  bool is_message = false;
  int from = 0;
  bool from_any = false;  // the receive accepts any sender
};

// `one_hop`: few kinds of operations only, so that they hit the cache and may be posted.
std::vector<Plan> MakePlans(Random& random, const std::vector<std::vector<int>>& sets,
                            const std::vector<int>& all, bool one_hop);

// Random subsets of the ranks, at most three.
std::vector<std::vector<int>> MakeSets(Random& random, const std::vector<int>& all, int least);

// The operation as `rank` submits it. `data` is its tensor, filled with the rank + 1.
OperationPtr OperationOf(const Plan& plan, int rank, std::vector<float>& data);

}  // namespace horoscale::sim
