// What a bucket asks of NCCL: which operations NCCL serves as the contract defines them, and the
// calls that carry them out.
#pragma once

#include <cstdint>

#include "backends/fused_operation.h"
#include "backends/nccl/cuda_device.h"
#include "backends/nccl/nccl_communicator.h"
#include "base/status.h"

namespace horoscale {

// A function of what all members know alike, so that all choose the same way. NCCL has no 16-bit
// integers, no product of complex numbers and does not say what its minimum of NaN is; its scale
// factors are for sums of floating-point numbers.
bool IsServedByNccl(const FusedOperation& operation);

struct NcclCallContext {
  const NcclCommunicator* communicator = nullptr;
  CudaStreamHandle stream = nullptr;
  uint32_t self = 0;
  uint32_t size = 1;
  std::byte* fusion_buffer = nullptr;  // allreduce: all pieces one after the other; null: none
};

// Issues the operation as one group. The results of an allgather or alltoall are allocated, and
// their rows known.
Status IssueNccl(const NcclCallContext& context, FusedOperation& operation);

}  // namespace horoscale
