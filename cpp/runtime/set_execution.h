// SetExecution: a set's execution half, which executes the plan in order.
//
// It takes actions and reports their completion. It makes no decisions: all members execute the
// same actions. Called by the engine's owner.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "backends/fused_operation.h"
#include "backends/mpi/mpi_communicators.h"
#include "runtime/config.h"
#include "runtime/device_queue.h"
#include "runtime/launch_stamps.h"
#include "runtime/pending_operations.h"
#include "runtime/set_control.h"
#include "runtime/set_counters.h"
#include "runtime/set_host.h"
#include "runtime/set_place.h"
#include "runtime/set_residuals.h"
#include "transport/transport.h"

namespace horoscale {

class SetExecution final : public PlanSink {
 public:
  // Receives finished actions. It may call Abandon().
  class Owner {
   public:
    virtual ~Owner() = default;
    // `fused` is null if the action has no tensors.
    virtual void OnEnded(const Action& action, const FusedOperation* fused, double started_at,
                         double now) = 0;
  };

  SetExecution(Owner& owner, SetHost& host, Transport& transport, const Config& config,
               const SetPlace& place, const PendingOperations& pending, SetCounters& counters,
               std::shared_ptr<MpiSetCommunicator> mpi);

  void OnPlanned(Action action, double now) override;
  Status OnStamp(int from_rank, std::span<const std::byte> payload);

  // Makes progress by at most one chunk; returns whether there was any. A failed status means that
  // an operation was abandoned.
  Result<bool> Step(double now);

  bool Busy() const { return !queue_.empty() || !device_.empty(); }
  // How long the owner may sleep: the completion of an operation that MPI runs does not wake it.
  double MaxSleepSeconds(double now) const;
  // Whether the device is executing operations, whose completion must be polled.
  bool WaitsForDevice() const {
    return HasLaunched() || (collective_ && queue_.front().common.on_device);
  }
  bool HasLaunched() const { return !device_.empty(); }

  // The set has failed: starts nothing more. Messages may still be executing on its device.
  void Abandon(bool has_messages_at_work);
  // After Abandon(): whether the device has finished. Operations whose tensors a kernel may still
  // write to are finished only after the kernel, because then their memory returns to the caller.
  bool IsOver(double now) const { return device_.IsOver(now); }
  void Forget() { device_.Clear(); }
  // The set's lane on its device, if it uses NCCL and all later launches of this set and the global
  // one have a position in the launch order; otherwise null.
  const DeviceLane* LaneInOrder() const {
    const DeviceLane* const lane = device_.lane();
    const bool is_ready = lane != nullptr && lane->CanLaunch();
    return is_ready && stamps_.OrdersAll(ended_sequence_) ? lane : nullptr;
  }
  bool HasLane() const { return device_.HasLane(); }
  bool HasLaneEnded() const { return device_.HasLaneEnded(); }

  const std::shared_ptr<MpiSetCommunicator>& mpi() const { return mpi_; }
  const Exchange* exchange() const { return exchange_.get(); }
  const std::shared_ptr<SetResiduals>& residuals() const { return residuals_; }

  // For watchers: the action that runs on this rank, and the action that the device or this rank is
  // executing; null if there is none.
  const Action* Running() const { return collective_ ? &queue_.front() : nullptr; }
  const Action* AtWork() const { return device_.empty() ? Running() : &device_.front().action; }
  double started_at() const { return started_at_; }
  double progressed_at() const { return progressed_at_; }
  // The sequence number of the last finished action.
  uint64_t ended_sequence() const { return ended_sequence_; }

 private:
  Status Start(const Action& action, double now);
  Status StartBucket(const Action& action);
  Status StartCollective(const Action& action);
  void FindResiduals(const Action& action);
  bool IsLaunched(const Action& action) const;
  void OnFrontLaunched();
  Result<bool> EndLaunched(double now);
  void EndFront(double now);
  void End(const Action& action, const FusedOperation* fused, double started_at, double now);
  void TakeResults(const Action& action, FusedOperation& fused);

  Owner& owner_;
  SetHost& host_;
  Transport& transport_;
  const SetPlace& place_;
  const PendingOperations& pending_;
  SetCounters& counters_;
  const std::shared_ptr<MpiSetCommunicator> mpi_;

  const std::shared_ptr<SetResiduals> residuals_;

  std::deque<Action> queue_;            // the front is running if fused_ or collective_ is set
  std::unique_ptr<Exchange> exchange_;  // opened by the first operation that moves data
  std::unique_ptr<FusedOperation> fused_;
  std::unique_ptr<Collective> collective_;
  bool is_run_by_mpi_ = false;  // the collective
  LaunchStamps stamps_;
  DeviceQueue device_;
  double started_at_ = 0;
  double progressed_at_ = 0;  // of the running action, like the next
  uint64_t ended_sequence_ = 0;
  bool abandoned_ = false;
};

}  // namespace horoscale
