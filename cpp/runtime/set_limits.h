// SetLimits: the current limits of a set's coordinator for buckets and credit.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/autotuner.h"
#include "core/pace.h"
#include "core/step_clock.h"
#include "runtime/config.h"

namespace horoscale {

// The user's limits, varied by an autotuner if enabled, and bounded by the pace of the network.
class SetLimits {
 public:
  // `tuned`: whether an autotuner searches for better limits.
  SetLimits(const Config& config, bool tuned);

  Limits Get() const;

  // Each returns whether Get() may have changed.
  bool OnEntry(const PlanEntry& entry, double now);
  bool OnExecuted(int64_t bytes, double seconds) { return pace_.OnExecuted(bytes, seconds); }

  // The autotuner's records since the last call.
  std::vector<Autotuner::Record> TakeRecords();

 private:
  const Limits configured_;
  std::optional<Autotuner> tuner_;
  Pace pace_;
  StepClock step_clock_;
};

}  // namespace horoscale
