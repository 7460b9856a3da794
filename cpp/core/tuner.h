// Tuner: the current limits of a set's coordinator for buckets and credit, and one log of what
// changes how its tensors are sent: limits, pace and encodings. Pure.
//
// It first measures until pace and encodings have settled. Then an Autotuner searches for better
// limits, beginning with those that the CostModel predicts from these measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/autotuner.h"
#include "core/coordinator.h"
#include "core/pace.h"
#include "core/step_clock.h"

namespace horoscale {

class Tuner {
 public:
  // Tuning begins after this many steps at the latest.
  static constexpr uint64_t kMostMeasuredSteps = 40;

  // `searches`: whether it searches for better limits, and keeps a log. If not, only the pace
  // bounds the configured limits.
  Tuner(const Limits& configured, bool searches) : configured_(configured), searches_(searches) {}

  Limits Get() const;

  // The coordinator has published an entry. Changes its limits if necessary.
  void OnEntry(Coordinator& coordinator, const PlanEntry& entry, double now);
  // A bucket was executed. `shows_pace`: its time shows what the network between hosts carries.
  void OnBucket(Coordinator& coordinator, const EncodingChooser::Bucket& bucket, bool shows_pace);

  // The log since the last call.
  std::vector<TuningRecord> TakeRecords();

 private:
  const Limits& Wanted() const { return autotuner_ ? autotuner_->limits() : configured_; }
  void NoteEncodings(Coordinator& coordinator);
  void NotePace();
  void Begin(Coordinator& coordinator);

  const Limits configured_;
  const bool searches_;
  std::optional<Autotuner> autotuner_;  // nothing while it measures
  Pace pace_;
  StepClock step_clock_;
  uint64_t steps_ = 0;
  uint64_t settled_since_ = 0;  // step of the last change of pace or encodings
  std::vector<TuningRecord> records_;
};

}  // namespace horoscale
