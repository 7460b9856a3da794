// StepTimes: how long the steps of this rank take, and for how long they are blocked, in waits for
// buckets that are executed and in waits for other ranks.
//
// A step lies between two submissions of one named operation: the first that is seen twice, and
// another one where that doesn't come any more. By the engine's owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "runtime/waiting_time.h"

namespace horoscale {

struct StepTotals {
  uint64_t steps = 0;          // that have ended
  double seconds = 0;          // that they took
  double exposed_seconds = 0;  // of these, in which a thread was blocked and a bucket executed
  double waiting_seconds = 0;  // in which a thread was blocked and none was
};

class StepTimes {
 public:
  explicit StepTimes(const WaitingTime& waits) : waits_(waits) {}

  // A named operation was called at this time. Costs a comparison of two strings.
  void OnSubmitted(std::string_view name, double at);
  // A bucket was executed from then to now. For how long of that a thread was blocked; where
  // another set's was executed at the same time, it counts for that alone.
  double OnExecuted(double started_at, double now);

  const StepTotals& totals() const { return totals_; }

 private:
  void Mark(std::string_view name, double at);

  const WaitingTime& waits_;
  StepTotals totals_;
  std::string marker_;
  double marked_at_ = 0;
  double longest_ = 0;         // step, by this marker
  double blocked_before_ = 0;  // when it was marked
  double exposed_before_ = 0;
  double exposed_ = 0;        // since the start
  double counted_until_ = 0;  // sets execute buckets at the same time: none counts twice
  std::unordered_set<std::string> seen_;  // while there is no marker
};

}  // namespace horoscale
