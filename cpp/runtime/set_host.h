// SetHost: the interface of process sets to the runtime. Called by the engine's owner.
#pragma once

#include <vector>

#include "core/launch_order.h"
#include "core/messages.h"
#include "core/request.h"
#include "core/tuning_record.h"
#include "runtime/operation.h"
#include "runtime/set_place.h"

namespace horoscale {

class SetHost {
 public:
  virtual ~SetHost() = default;
  virtual void Finish(const OperationPtr& operation, Status status) = 0;
  // Executes add_process_set or remove_process_set on this rank; returns the new ID, or 0.
  virtual Result<int64_t> Register(const Signature& signature) = 0;
  // Operations have been submitted to the device, or are done.
  virtual void OnLaunched() = 0;
  virtual LaunchOrder& launch_order() = 0;
  // The set has failed. Called before its pending operations are finished.
  virtual void OnFailed(const SetPlace& set, const Status& cause) = 0;
  // The same, but messages continue among the remaining members.
  virtual void OnMemberLeft(const SetPlace& set, const Status& cause) = 0;
  virtual double OnBucketDone(const SetPlace& set, const Action& action, double started_at) = 0;
  virtual void OnTuned(const SetPlace& set, const TuningRecord& record) = 0;
  // A stall is being reported: notifies rank 0.
  virtual void OnStall(const SetPlace& set, const StallNotice& notice) = 0;
  // Asks the other members whether their engines run; Silent() returns those that have not
  // answered.
  virtual void Probe(const SetPlace& set) = 0;
  virtual std::vector<int> Silent(const SetPlace& set) const = 0;
};

}  // namespace horoscale
