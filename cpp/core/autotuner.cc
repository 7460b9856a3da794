#include "core/autotuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/limit_steps.h"

namespace horoscale {
namespace {

constexpr int kWarmUpSteps = 5;
// The step in which limits change is not measured.
constexpr int kSkippedSteps = 1;
constexpr int kBlockSteps = 4;
constexpr int kPairs = 3;
constexpr int kNeeded = 2;
constexpr double kMargin = 0.02;  // minimum improvement of a change
constexpr int kFinalPairs = 6;
constexpr int kFinalNeeded = 5;

// A candidate of which the model predicts that it is slower by more is not tried.
constexpr double kDoubt = 0.05;
// Later disturbances are ignored.
constexpr int kMostDisturbed = 10;

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

const uint64_t Autotuner::kMaxSteps =
    kWarmUpSteps +
    (kSkippedSteps + kBlockSteps) * (2 * kPairs * (1 + kKnobs.size() * (kMostMoves + 1)) +
                                     2 * kFinalPairs + 2 * kMostDisturbed);

Autotuner::Autotuner(const Limits& given, std::optional<Prediction> prediction, uint64_t step)
    : given_(given),
      prediction_(std::move(prediction)),
      best_(given),
      reference_(given),
      skip_(step < kWarmUpSteps ? kWarmUpSteps - static_cast<int>(step) : kSkippedSteps),
      step_(step) {
  if (!BeginWithPrediction()) SearchOn();
}

bool Autotuner::BeginWithPrediction() {
  if (!prediction_) return false;
  const double before = Predicted(given_);
  const double after = Predicted(prediction_->best);
  Note(given_, 0, "predicted", prediction_->why);
  if (prediction_->best == given_ || after > before * (1 - kMargin)) return false;
  Note(prediction_->best, 0, "predicted", "the shortest predicted step");
  Compare(given_, prediction_->best, kPairs, kNeeded, kMargin);
  predicted_ = true;
  return true;
}

double Autotuner::Predicted(const Limits& limits) const {
  return prediction_ ? prediction_->seconds(limits) : 0;
}

// Equal times mean that the limits have the same effect.
bool Autotuner::IsHopeless(const Limits& limits) const {
  if (!prediction_) return false;
  const double best = Predicted(best_);
  const double then = Predicted(limits);
  return then > best * (1 + kDoubt) || std::abs(then - best) < 1e-9 * best;
}

// The order of blocks is reference, candidate, candidate, reference, …, so that drift favours
// neither.
bool Autotuner::TryingCandidate() const {
  return !finished_ && (blocks_ % 4 == 1 || blocks_ % 4 == 2);
}

void Autotuner::OnStep(double seconds) {
  if (finished_) return;
  ++step_;
  if (skip_ > 0) {
    --skip_;
    return;
  }
  steps_.push_back(seconds);
  if (steps_.size() == kBlockSteps) EndBlock();
}

// Which of the steps were affected is not known.
void Autotuner::OnDisturbed() {
  if (finished_ || disturbed_ == kMostDisturbed) return;
  ++disturbed_;
  steps_.clear();
  blocks_ -= blocks_ % 2;
  skip_ = std::max(skip_, kSkippedSteps);
}

void Autotuner::EndBlock() {
  const bool candidate = TryingCandidate();
  times_[candidate ? 1 : 0] = Median(steps_);
  steps_.clear();
  Note(limits(), times_[candidate ? 1 : 0], candidate ? "candidate" : "reference");
  const Limits before = limits();
  if (++blocks_ % 2 == 0) EndPair();
  if (limits() != before) skip_ = kSkippedSteps;
}

void Autotuner::EndPair() {
  (times_[1] < times_[0] * (1 - margin_) ? won_ : lost_) += 1;
  for (size_t i = 0; i < times_.size(); ++i) totals_[i] += times_[i];
  if (won_ == needed_) return OnVerdict(true);
  if (lost_ > pairs_ - needed_) OnVerdict(false);
}

void Autotuner::Compare(const Limits& reference, const Limits& candidate, int pairs, int needed,
                        double margin) {
  reference_ = reference;
  candidate_ = candidate;
  pairs_ = pairs;
  needed_ = needed;
  margin_ = margin;
  blocks_ = won_ = lost_ = 0;
  totals_ = {};
}

void Autotuner::OnVerdict(bool candidate_won) {
  if (final_) {
    finished_ = true;
    reference_ = candidate_won ? best_ : given_;
    Note(reference_, 0, candidate_won ? "chosen" : "initial limits kept");
    records_.back().is_last = true;
    if (candidate_won) records_.back().saved = 1 - totals_[1] / totals_[0];
    return;
  }
  if (candidate_won) best_ = candidate_;
  Note(limits(), 0, candidate_won ? "better" : "not better");
  if (predicted_) {
    predicted_ = false;
    if (!candidate_won) prediction_.reset();
  } else if (candidate_won) {
    ++moves_;
  } else {
    Turn();
  }
  SearchOn();
}

void Autotuner::SearchOn() {
  if (Propose()) return;
  final_ = true;
  if (best_ == given_) return OnVerdict(false);
  Compare(given_, best_, kFinalPairs, kFinalNeeded, kMargin / 2);
}

// The next candidate, and whether there is one.
bool Autotuner::Propose() {
  for (; knob_ < kKnobs.size(); Turn()) {
    // Without a model it is not known whether the pace has an effect.
    if (moves_ >= kMostMoves || (kKnobs[knob_] == Knob::kPace && !prediction_)) continue;
    const std::optional<Limits> next = Moved(best_, kKnobs[knob_], upwards_);
    if (!next || IsHopeless(*next)) continue;
    Compare(best_, *next, kPairs, kNeeded, kMargin);
    return true;
  }
  return false;
}

// Continues in the other direction if this one brought no improvement, otherwise with the next
// limit.
void Autotuner::Turn() {
  upwards_ = !upwards_ && moves_ == 0;
  if (upwards_) return;
  ++knob_;
  moves_ = 0;
}

void Autotuner::Note(const Limits& limits, double seconds, std::string_view what, std::string why) {
  records_.push_back({.step = step_,
                      .limits = limits,
                      .seconds = seconds,
                      .predicted_seconds = Predicted(limits),
                      .what = what,
                      .why = std::move(why)});
}

std::vector<Autotuner::Record> Autotuner::TakeRecords() { return std::exchange(records_, {}); }

}  // namespace horoscale
