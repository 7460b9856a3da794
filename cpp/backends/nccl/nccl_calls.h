// Maps buckets to NCCL: which operations NCCL executes according to the contract, and the calls
// that execute them.
#pragma once

#include <cstdint>

#include "backends/fused_operation.h"
#include "backends/nccl/cuda_device.h"
#include "backends/nccl/nccl_communicator.h"
#include "base/status.h"

namespace horoscale {

// Depends only on data that is equal on all members, so that all make the same choice. NCCL lacks
// 16-bit integers and products of complex numbers, does not define the minimum of NaN, and supports
// scale factors only for sums of floating-point numbers.
bool IsServedByNccl(const FusedOperation& operation);

struct NcclCallContext {
  const NcclCommunicator* communicator = nullptr;
  CudaStreamHandle stream = nullptr;
  uint32_t self = 0;
  uint32_t size = 1;
  std::byte* fusion_buffer = nullptr;  // allreduce: contiguous copies of all pieces; null: not used
};

// Issues the operation as one group. The results of an allgather or alltoall must have been
// allocated, and their rows must be known.
Status IssueNccl(const NcclCallContext& context, FusedOperation& operation);

}  // namespace horoscale
