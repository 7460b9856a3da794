// LaneConnector: lets the members of a set agree on how to transfer CUDA tensors, and creates a
// communicator.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/nccl/device_lane.h"
#include "collectives/collective.h"

namespace horoscale {

// The message that each member sends to the others, in memory layout.
struct LaneHello {
  int32_t nccl_version = 0;    // 0: no NCCL; `problem` has the reason
  int32_t shares_devices = 0;  // NCCL_MULTI_RANK_GPU_ENABLE is set
  int32_t fuses = 0;           // DEVICE_FUSION=buffer, which determines the number of calls
  CudaUuid device;
  NcclUniqueId id;         // created by the lowest member
  char problem[200] = {};  // NUL-terminated
};

// Why these ranks can't use NCCL together; empty if they can.
std::string ObjectionTo(std::span<const LaneHello> hellos, std::span<const int> ranks);

// A state machine, like a collective.
class LaneConnector {
 public:
  LaneConnector(DeviceLane& lane, Exchange& exchange);
  Result<Progress> Step();

 private:
  LaneHello OwnHello() const;
  Status Decide();

  DeviceLane& lane_;
  Exchange& exchange_;
  LaneHello hello_;
  std::vector<AllgatherResult> answers_;
  std::unique_ptr<Collective> exchange_of_hellos_;  // null: done
};

}  // namespace horoscale
