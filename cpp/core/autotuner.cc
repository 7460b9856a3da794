#include "core/autotuner.h"

#include <algorithm>
#include <utility>

namespace horoscale {
namespace {

constexpr int kWarmUpSteps = 5;
// The step in which limits change is not measured.
constexpr int kSkippedSteps = 1;
constexpr int kBlockSteps = 4;
constexpr int64_t kFactor = 4;
constexpr int kMaxMoves = 3;  // of one limit in one direction

constexpr int kPairs = 3;
constexpr int kNeeded = 2;
constexpr double kMargin = 0.02;  // minimum improvement of a change
constexpr int kFinalPairs = 6;
constexpr int kFinalNeeded = 5;

struct Range {
  int64_t least;
  int64_t most;
};
// By Knob. Smaller values cost more than overtaking gains; larger ones are never reached.
constexpr Range kRanges[] = {{int64_t{1} << 20, int64_t{1} << 30},
                             {int64_t{64} << 10, int64_t{1} << 28},
                             {int64_t{256} << 10, int64_t{1} << 29}};

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

const uint64_t Autotuner::kMaxSteps =
    kWarmUpSteps +
    (kSkippedSteps + kBlockSteps) * (2 * kPairs * kNumKnobs * (kMaxMoves + 1) + 2 * kFinalPairs);

Autotuner::Autotuner(const Limits& given)
    : given_(given), best_(given), reference_(given), skip_(kWarmUpSteps) {
  finished_ = !Propose();
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

void Autotuner::EndBlock() {
  const bool candidate = TryingCandidate();
  times_[candidate ? 1 : 0] = Median(steps_);
  steps_.clear();
  Note(times_[candidate ? 1 : 0], candidate ? "candidate" : "reference");
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
    Note(0, candidate_won ? "chosen" : "initial limits kept");
    records_.back().is_last = true;
    if (candidate_won) records_.back().saved = 1 - totals_[1] / totals_[0];
    return;
  }
  if (candidate_won) best_ = candidate_;
  Note(0, candidate_won ? "better" : "not better");
  SearchOn(candidate_won);
}

void Autotuner::SearchOn(bool candidate_won) {
  if (candidate_won) {
    ++moves_;
  } else {
    Turn();
  }
  if (Propose()) return;
  final_ = true;
  if (best_ == given_) return OnVerdict(false);
  Compare(given_, best_, kFinalPairs, kFinalNeeded, kMargin / 2);
}

// The next candidate, and whether there is one.
bool Autotuner::Propose() {
  while (knob_ < kNumKnobs) {
    Limits next = best_;
    int64_t* const values[] = {&next.credit_bytes, &next.partition_bytes,
                               &next.fusion_threshold_bytes};
    int64_t& value = *values[knob_];
    // Buckets are at most half the credit (core/coordinator.cc).
    const int64_t from = knob_ == kFusion ? std::min(value, next.credit_bytes / 2) : value;
    const bool has_effect = value > 0 && (from == value || !upwards_);
    const int64_t moved = upwards_ ? from * kFactor : from / kFactor;
    const Range range = kRanges[knob_];
    if (has_effect && moves_ < kMaxMoves && moved >= range.least && moved <= range.most) {
      value = moved;
      Compare(best_, next, kPairs, kNeeded, kMargin);
      return true;
    }
    Turn();
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

void Autotuner::Note(double seconds, std::string_view what) {
  records_.push_back({.step = step_, .limits = limits(), .seconds = seconds, .what = what});
}

std::vector<Autotuner::Record> Autotuner::TakeRecords() { return std::exchange(records_, {}); }

}  // namespace horoscale
