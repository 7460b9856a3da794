// StepTimes: the duration of this rank's steps, and how long they are blocked in waits for buckets
// in execution, and in waits for other ranks.
//
// A step is the time between two submissions of one named operation, the marker: the first that is
// seen twice, or another one when that does not recur. Called by the engine's owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "runtime/waiting_time.h"

namespace horoscale {

struct StepTotals {
  uint64_t steps = 0;          // completed steps
  double seconds = 0;          // their total duration
  double exposed_seconds = 0;  // of these, while a thread was blocked and a bucket was executed
  double waiting_seconds = 0;  // while a thread was blocked and no bucket was executed
};

class StepTimes {
 public:
  explicit StepTimes(const WaitingTime& waits) : waits_(waits) {}

  // Records the call of a named operation. Costs one string comparison.
  void OnSubmitted(std::string_view name, double at);
  // Records the execution of a bucket. Returns for how long a thread was blocked in that time; time
  // in which another set executed as well counts only for that set.
  double OnExecuted(double started_at, double now);

  const StepTotals& totals() const { return totals_; }

 private:
  void Mark(std::string_view name, double at);

  const WaitingTime& waits_;
  StepTotals totals_;
  std::string marker_;
  double marked_at_ = 0;
  double longest_ = 0;         // longest step with this marker
  double blocked_before_ = 0;  // value at the last marker
  double exposed_before_ = 0;
  double exposed_ = 0;        // since the start
  double counted_until_ = 0;  // sets execute buckets concurrently; overlapping time counts once
  std::unordered_set<std::string> seen_;  // used while there is no marker
};

}  // namespace horoscale
