// DeviceQueue: the operations on CUDA tensors that a set has submitted to the device, in plan
// order.
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

  // Starts a bucket, which has been launched when the collective is done.
  Result<std::unique_ptr<Collective>> Start(const Action& action, FusedOperation& fused,
                                            Exchange& exchange, LaunchStamps& stamps);
  // Adds an operation whose work has been submitted.
  void Add(Launched launched) { launched_.push_back(std::move(launched)); }

  // The number of operations at the front that the device has completed.
  Result<size_t> CountDone();
  Launched TakeFront();

  // Operations that the device is executing.
  bool empty() const { return launched_.empty(); }
  const Launched& front() const { return launched_.front(); }

  // Ends the queue. `running` and its collective, if any, may have submitted work to the device,
  // and so may other users of the lane.
  void End(std::unique_ptr<FusedOperation> running, std::unique_ptr<Collective> collective,
           bool is_used);
  // Whether the work at the time of End() is complete, or its wait has timed out. Kernels that wait
  // for a lost rank must be aborted.
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
  std::unique_ptr<DeviceLane> lane_;  // created by the first operation
  double abort_deadline_ = 0;         // for operations that were executing when the set failed
};

}  // namespace horoscale
