// DeviceQueue: the operations on CUDA tensors that a set has given to the device, in the order of
// the plan.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "backends/fused_operation.h"
#include "backends/nccl/device_lane.h"
#include "core/member.h"
#include "runtime/config.h"
#include "runtime/launch_stamps.h"
#include "runtime/pending_operations.h"
#include "runtime/set_place.h"

namespace horoscale {

class DeviceQueue {
 public:
  struct Launched {
    Action action;
    std::unique_ptr<FusedOperation> fused;
    double started_at;
  };

  DeviceQueue(const Config& config, const SetPlace& place, const PendingOperations& pending);

  // Starts a bucket, which is launched when the collective is done.
  Result<std::unique_ptr<Collective>> Start(const Action& action, FusedOperation& fused,
                                            Exchange& exchange, LaunchStamps& stamps);
  // The device has its work.
  void Add(Launched launched) { launched_.push_back(std::move(launched)); }

  // How many the device has done, from the front.
  Result<size_t> CountDone();
  Launched TakeFront();

  // What the device is at work for.
  bool empty() const { return launched_.empty(); }
  const Launched& front() const { return launched_.front(); }

  // Nothing is started any more. `running` and its collective, if any, may have given the device
  // something to do, and so may somebody else through the lane.
  void End(std::unique_ptr<FusedOperation> running, std::unique_ptr<Collective> collective,
           bool is_used);
  // Kernels that wait for a lost rank end only by force: whether what was at work is over, or was
  // waited for long enough.
  bool IsOver(double now) const;
  const DeviceLane* lane() const { return lane_.get(); }
  bool HasLane() const { return lane_ != nullptr; }
  bool HasLaneEnded() const { return lane_ == nullptr || lane_->has_ended(); }
  void Clear() { launched_.clear(); }

 private:
  const Config& config_;
  const SetPlace& place_;
  const PendingOperations& pending_;
  std::deque<Launched> launched_;
  std::unique_ptr<DeviceLane> lane_;  // made by the first operation
  double abort_deadline_ = 0;         // of what failed while it was at work
};

}  // namespace horoscale
