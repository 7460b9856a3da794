// SetHost: the runtime, as its process sets see it. All calls come from the engine's owner.
#pragma once

#include <vector>

#include "core/autotuner.h"
#include "core/launch_order.h"
#include "core/messages.h"
#include "core/request.h"
#include "runtime/operation.h"
#include "runtime/set_place.h"

namespace horoscale {

class SetHost {
 public:
  virtual ~SetHost() = default;
  virtual void Finish(const OperationPtr& operation, Status status) = 0;
  // Performs add_process_set or remove_process_set here; the new id, or 0.
  virtual Result<int64_t> Register(const Signature& signature) = 0;
  // Operations have been given to the device, or are done.
  virtual void OnLaunched() = 0;
  virtual LaunchOrder& launch_order() = 0;
  // The set has failed, before its pending operations are finished.
  virtual void OnFailed(const SetPlace& set, const Status& cause) = 0;
  // The same, but that messages go on among those that are left.
  virtual void OnMemberLeft(const SetPlace& set, const Status& cause) = 0;
  virtual double OnBucketDone(const SetPlace& set, const Action& action, double started_at) = 0;
  virtual void OnTuned(const SetPlace& set, const Autotuner::Record& record) = 0;
  // A stall is being reported: rank 0 gets to know.
  virtual void OnStall(const SetPlace& set, const StallNotice& notice) = 0;
  // Asks the other members whether their engines run; which of them have not answered.
  virtual void Probe(const SetPlace& set) = 0;
  virtual std::vector<int> Silent(const SetPlace& set) const = 0;
};

}  // namespace horoscale
