// FusedOperation: one bucket of a process set with the callers' memory resolved. What a backend
// runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/types.h"
#include "collectives/collective.h"

namespace horoscale {

// A contiguous run of one tensor. in and out are null where this member takes no part.
struct FusedPiece {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t bytes = 0;  // of the run; where rows count: of the whole input
  int64_t rows = 0;   // first dimension (allgather, alltoall, reducescatter)
  int64_t row_bytes = 0;
};

struct FusedOperation {
  OpKind kind = OpKind::kAllreduce;
  Reduction reduction;
  std::optional<DataType> wire;  // in which sums travel between hosts, where not in their own
  uint32_t root = 0;             // member index (broadcast)
  std::vector<uint32_t> absent;
  std::vector<FusedPiece> pieces;
  std::vector<int64_t> splits;  // alltoall
  // Results of unknown size, one per piece; filled while the bucket runs, lives as long as it.
  std::vector<AllgatherResult> results;
};

}  // namespace horoscale
