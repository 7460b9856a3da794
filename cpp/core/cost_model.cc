#include "core/cost_model.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <numeric>
#include <utility>

#include "core/fusion_planner.h"
#include "core/limit_steps.h"
#include "core/scheduler.h"

namespace horoscale {
namespace {

// Differences below this are not believed.
constexpr double kAlmostEqual = 0.005;
// Limits that cut a step into more parts are not considered: predicting them would take long.
constexpr int64_t kMostParts = 1024;

double SecondsPerByte(const StepOperation& operation, const NetworkState& network) {
  const Signature& signature = *operation.signature;
  const Encoding asked = signature.encoding.IsAdaptive() ? Encoding() : signature.encoding;
  const Encoding encoding = operation.chosen.value_or(asked);
  double sent = 1;
  if (!signature.tensors.empty() && encoding.IsFor(signature.tensors[0].dtype)) {
    const DataType dtype = signature.tensors[0].dtype;
    sent = encoding.BytesPerElement(dtype) / static_cast<double>(SizeOf(dtype));
  }
  const bool is_coded = encoding.IsLossy() && network.coding_per_second > 0;
  return sent / network.bytes_per_second + (is_coded ? 1 / network.coding_per_second : 0);
}

}  // namespace

CostModel::CostModel(ProfiledStep step, const NetworkState& network, const Pace& pace,
                     const Limits& limits)
    : step_(std::move(step)), network_(network), pace_(pace) {
  for (const StepOperation& operation : step_.operations) {
    total_bytes_ += operation.bytes;
    seconds_per_byte_.push_back(SecondsPerByte(operation, network_));
  }
  needed_.resize(step_.operations.size());
  std::iota(needed_.rbegin(), needed_.rend(), size_t{0});
  std::stable_sort(needed_.begin(), needed_.end(), [&](size_t a, size_t b) {
    return step_.operations[a].priority > step_.operations[b].priority;
  });
  const Times times = TimesOf(Play(limits));
  if (times.serial > times.overlapped) {
    overlap_ =
        std::clamp((times.serial - step_.seconds) / (times.serial - times.overlapped), 0.0, 1.0);
  }
}

double CostModel::Predict(const Limits& limits) const {
  const Times times = TimesOf(Play(limits));
  return overlap_ * times.overlapped + (1 - overlap_) * times.serial;
}

Limits CostModel::Best(const Limits& from) const {
  std::map<Effect, double> known;
  Limits best = from;
  double shortest = Predict(from);
  known[EffectOf(from)] = shortest;
  for (const Limits& limits : LimitGrid(from)) {
    if (Parts(pace_.Of(limits).partition_bytes) > kMostParts) continue;
    const auto [found, is_new] = known.try_emplace(EffectOf(limits), 0);
    if (!is_new) continue;
    found->second = Predict(limits);
    if (found->second < shortest * (1 - kAlmostEqual)) {
      shortest = found->second;
      best = limits;
    }
  }
  return best;
}

CostModel::Effect CostModel::EffectOf(const Limits& limits) const {
  const Limits paced = pace_.Of(limits);
  const int64_t bucket = FusionPlanner::Of(paced).limits().bucket_bytes;
  return {std::min(bucket, total_bytes_), std::min(paced.partition_bytes, total_bytes_),
          std::min(paced.credit_bytes, 2 * total_bytes_)};
}

int64_t CostModel::Parts(int64_t partition_bytes) const {
  int64_t parts = 0;
  for (const StepOperation& operation : step_.operations) {
    parts += partition_bytes > 0 ? operation.bytes / partition_bytes + 1 : 1;
  }
  return parts;
}

// When each operation is done.
std::vector<double> CostModel::Play(const Limits& limits) const {
  struct Running {
    uint64_t sequence;
    double end;
  };
  const Limits paced = pace_.Of(limits);
  Scheduler scheduler(FusionPlanner::Of(paced), paced.credit_bytes);
  std::vector<double> done(step_.operations.size());
  std::deque<Running> running;
  uint64_t sequence = 0;
  double free_at = 0;
  const auto publish = [&](double now) {
    for (auto buckets = scheduler.Take(); !buckets.empty(); buckets = scheduler.Take()) {
      for (const Bucket& bucket : buckets) {
        free_at = std::max(free_at, now) + network_.latency_seconds;
        for (const Part& part : bucket.parts) {
          free_at += static_cast<double>(part.bytes) * seconds_per_byte_[part.unit];
        }
        for (const Part& part : bucket.parts) done[part.unit] = free_at;
        scheduler.Published(++sequence, bucket.bytes);
        running.push_back({sequence, free_at});
      }
    }
  };
  for (size_t next = 0; next < done.size() || !running.empty();) {
    if (next == done.size() ||
        (!running.empty() && running.front().end <= step_.operations[next].ready)) {
      const Running first = running.front();
      running.pop_front();
      scheduler.Executed(first.sequence);
      publish(first.end);
      continue;
    }
    const StepOperation& operation = step_.operations[next];
    scheduler.Push({.unit = static_cast<UnitId>(next),
                    .signature = operation.signature,
                    .absent = {},
                    .priority = operation.priority,
                    .bytes = operation.bytes,
                    .chosen = operation.chosen});
    ++next;
    publish(operation.ready);
  }
  return done;
}

CostModel::Times CostModel::TimesOf(const std::vector<double>& done) const {
  if (done.empty()) return {step_.seconds, step_.seconds};
  const double last_ready = step_.operations.back().ready;
  const double rest = std::max(step_.computed_seconds - last_ready, 0.0);
  const double last_done = *std::max_element(done.begin(), done.end());
  double at = last_ready;
  for (const size_t operation : needed_) {
    at = std::max(at, done[operation]) + rest / static_cast<double>(done.size());
  }
  return {std::max(last_ready, last_done) + rest, at};
}

std::string CostModel::Describe() const {
  char text[192];
  std::snprintf(text, sizeof text,
                "measured %.1f ms, of which %.1f computed; %zu operations with %.1f MB; "
                "%.1f MB/s and %.2f ms a bucket; overlap %.2f",
                step_.seconds * 1e3, step_.computed_seconds * 1e3, step_.operations.size(),
                static_cast<double>(total_bytes_) / 1e6, network_.bytes_per_second / 1e6,
                network_.latency_seconds * 1e3, overlap_);
  return text;
}

}  // namespace horoscale
