// FusedOperation: one bucket of a process set with the callers' memory resolved. What a backend
// runs.
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

// A contiguous run of one tensor. in and out are null where this member takes no part.
struct FusedPiece {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t bytes = 0;  // of the run; where rows count: of the whole input
  int64_t rows = 0;   // first dimension (of kinds that count rows)
  int64_t row_bytes = 0;
  int64_t out_rows = 0;    // for which out has room (allgather, alltoall), where it isn't null
  TensorPart part{};       // where what is lost by its encoding is kept
  bool continues = false;  // the same tensor as the piece before, from where that ends
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
  // By member, where the set has another order than that of the ranks; else empty. What follows
  // the order of members (FollowsOrder) goes by these, all else by the ranks.
  std::vector<uint32_t> positions;
  uint32_t PositionOf(uint32_t member) const {
    return positions.empty() ? member : positions[member];
  }
  // Rows for each position: alltoall, scatter at the root, reducescatter where not evenly.
  std::vector<int64_t> splits;
  std::vector<std::shared_ptr<TensorResiduals>> residuals;  // that pieces refer to
  EncodingTotals* encoded = nullptr;
  double coded_before = 0;  // their seconds, when it began
  double CodingSeconds() const { return encoded == nullptr ? 0 : encoded->seconds - coded_before; }
  bool sealed = false;  // one of the tensors is to be, see Exchange
  // Results of unknown size, one per piece; filled while the bucket runs, lives as long as it.
  std::vector<AllgatherResult> results;

  // CUDA tensors only: what they wait for, by operation, and in whose order results are given back.
  std::vector<CudaReady> ready;
  // Set when the collective is done: then the device has been given its work; it comes to this
  // event when it has done it.
  CudaEventPtr finished;
  std::vector<OwnedBytes> held;  // what the work needs until then
  bool by_nccl = false;
};

}  // namespace horoscale
