// FusedOperation: one bucket of a process set with pointers to the callers' memory, as a backend
// executes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "backends/nccl/cuda_device.h"
#include "base/encoding.h"
#include "base/types.h"
#include "collectives/collective.h"

namespace horoscale {

// A contiguous run of one tensor. in and out are null if this member does not participate.
struct FusedPiece {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t bytes = 0;  // size of the run; for kinds that count rows, of the whole input
  int64_t rows = 0;   // first dimension (of kinds that count rows)
  int64_t row_bytes = 0;
  int64_t out_rows = 0;    // capacity of out in rows (allgather, alltoall), if it is not null
  TensorPart part{};       // the location of its residuals
  bool continues = false;  // continues the tensor of the previous piece
};

struct FusedOperation {
  OpKind kind = OpKind::kAllreduce;
  Reduction reduction;
  Encoding encoding;  // of sums, between hosts
  uint32_t root = 0;  // member index, of kinds with HasRoot()
  std::vector<uint32_t> absent;
  std::vector<FusedPiece> pieces;
  int64_t Bytes() const {
    return std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                           [](int64_t sum, const FusedPiece& piece) { return sum + piece.bytes; });
  }
  // Position of each member in the set's order; empty if the set is in rank order. Operations that
  // follow the order of members (FollowsOrder) use positions, all others the ranks.
  std::vector<uint32_t> positions;
  uint32_t PositionOf(uint32_t member) const {
    return positions.empty() ? member : positions[member];
  }
  // Rows per position: for alltoall, scatter at the root, and uneven reducescatter.
  std::vector<int64_t> splits;
  std::vector<std::shared_ptr<TensorResiduals>> residuals;  // referenced by pieces
  EncodingTotals* encoded = nullptr;
  double coded_before = 0;  // their seconds, when it began
  double CodingSeconds() const { return encoded == nullptr ? 0 : encoded->seconds - coded_before; }
  bool sealed = false;  // one of the tensors is to be, see Exchange
  // Results of unknown size, one per piece; filled while the bucket runs, lives as long as it.
  std::vector<AllgatherResult> results;

  // CUDA tensors only: the stream position that each operation waits for, and that the release of
  // its results is ordered after.
  std::vector<CudaReady> ready;
  // Set when the collective is done, that is, when its work has been submitted to the device. The
  // device records this event when the work is complete.
  CudaEventPtr finished;
  std::vector<OwnedBytes> held;  // memory that the work needs until then
  bool by_nccl = false;
};

}  // namespace horoscale
