// SetLimits: how much a set's coordinator may put into one bucket, and plan ahead.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/autotuner.h"
#include "core/pace.h"
#include "core/step_clock.h"
#include "runtime/config.h"

namespace horoscale {

// What the user has set, as an autotuner varies it where one is asked for, bounded by the pace of
// the network.
class SetLimits {
 public:
  // `tuned`: whether an autotuner looks for better ones.
  SetLimits(const Config& config, bool tuned);

  Limits Get() const;

  // Each returns whether Get() may have changed.
  bool OnEntry(const PlanEntry& entry, double now);
  bool OnExecuted(int64_t bytes, double seconds) { return pace_.OnExecuted(bytes, seconds); }

  // What the autotuner has found out since it was asked before.
  std::vector<Autotuner::Record> TakeRecords();

 private:
  const Limits configured_;
  std::optional<Autotuner> tuner_;
  Pace pace_;
  StepClock step_clock_;
};

}  // namespace horoscale
