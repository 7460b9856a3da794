#include "runtime/set_limits.h"

namespace horoscale {

SetLimits::SetLimits(const Config& config, bool tuned)
    : configured_({.fusion_threshold_bytes = config.fusion_threshold_bytes,
                   .partition_bytes = config.partition_bytes,
                   .credit_bytes = config.credit_bytes}) {
  if (tuned) tuner_.emplace(configured_);
}

Limits SetLimits::Get() const { return pace_.Of(tuner_ ? tuner_->limits() : configured_); }

bool SetLimits::OnEntry(const PlanEntry& entry, double now) {
  if (!tuner_) return false;
  const auto seconds = step_clock_.OnEntry(entry, now);
  if (!seconds || tuner_->finished()) return false;
  tuner_->OnStep(*seconds);
  return true;
}

std::vector<Autotuner::Record> SetLimits::TakeRecords() {
  return tuner_ ? tuner_->TakeRecords() : std::vector<Autotuner::Record>{};
}

}  // namespace horoscale
