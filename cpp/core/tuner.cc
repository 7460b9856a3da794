#include "core/tuner.h"

#include <cstdio>
#include <string>
#include <utility>

#include "core/cost_model.h"

namespace horoscale {
namespace {

// Pace and encodings have settled if they have not changed for this many steps.
constexpr uint64_t kSettledSteps = 6;

}  // namespace

Limits Tuner::Get() const { return pace_.Of(Wanted()); }

void Tuner::OnEntry(Coordinator& coordinator, const PlanEntry& entry, double now) {
  if (!searches_) return;
  NoteEncodings(coordinator);
  const std::optional<double> seconds = step_clock_.OnEntry(entry, now);
  if (!seconds) return;
  ++steps_;
  if (!autotuner_) {
    const bool has_settled = steps_ - settled_since_ >= kSettledSteps;
    if (!has_settled && steps_ < kMostMeasuredSteps) return;
    Begin(coordinator);
  } else if (!autotuner_->finished()) {
    autotuner_->OnStep(*seconds);
  } else {
    return;
  }
  for (TuningRecord& record : autotuner_->TakeRecords()) records_.push_back(std::move(record));
  coordinator.SetLimits(Get());
}

void Tuner::OnBucket(Coordinator& coordinator, const EncodingChooser::Bucket& bucket,
                     bool shows_pace) {
  coordinator.OnBucket(bucket);
  const Limits before = Get();
  if (!shows_pace || !pace_.OnExecuted(bucket.bytes, bucket.seconds) || Get() == before) return;
  coordinator.SetLimits(Get());
  if (searches_) NotePace();
}

void Tuner::NoteEncodings(Coordinator& coordinator) {
  for (EncodingChooser::Change& change : coordinator.TakeEncodingChanges()) {
    records_.push_back({.step = steps_,
                        .limits = Get(),
                        .what = "encoding",
                        .name = std::move(change.name),
                        .encoding = Name(change.encoding),
                        .why = std::move(change.why)});
    settled_since_ = steps_;
    if (autotuner_) autotuner_->OnDisturbed();
  }
}

void Tuner::NotePace() {
  settled_since_ = steps_;
  char why[96];
  std::snprintf(why, sizeof why, "bandwidth %.1f MB/s, latency %.2f ms",
                pace_.bytes_per_second() / 1e6, pace_.latency_seconds() * 1e3);
  records_.push_back({.step = steps_, .limits = Get(), .what = "pace", .why = why});
}

// The profile is taken in any case: nothing needs it later.
void Tuner::Begin(Coordinator& coordinator) {
  std::optional<ProfiledStep> step = coordinator.TakeProfile();
  const NetworkState network = coordinator.Network();
  std::optional<Autotuner::Prediction> prediction;
  if (step && network.bytes_per_second > 0) {
    const CostModel model(std::move(*step), network, pace_, configured_);
    prediction = {.best = model.Best(configured_),
                  .seconds = [model](const Limits& limits) { return model.Predict(limits); },
                  .why = model.Describe()};
  }
  autotuner_.emplace(configured_, std::move(prediction), steps_);
}

std::vector<TuningRecord> Tuner::TakeRecords() { return std::exchange(records_, {}); }

}  // namespace horoscale
