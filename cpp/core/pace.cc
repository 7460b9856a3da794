#include "core/pace.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace horoscale {
namespace {

constexpr double kUsualSeconds = Limits{}.pace_seconds;

// Smaller buckets are dominated by overhead, and their times measure latency instead of bandwidth.
constexpr int64_t kLeastBucketBytes = 128 << 10;

// The bytes of a bucket take at least this many times its latency, so that a fifth of the time is
// lost at most.
constexpr double kLatencies = 4;

// The weight that remains for previous buckets.
constexpr double kMemory = 0.9;

// The largest power of two below, but the old value where that is too large by less than half.
int64_t Follow(int64_t old, double value) {
  constexpr double kMost = uint64_t{1} << 40;
  const auto fits = static_cast<int64_t>(std::clamp(value, 1.0, kMost));
  const auto rounded = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fits)));
  return rounded < old && value * 3 > static_cast<double>(old) * 2 ? old : rounded;
}

}  // namespace

bool Pace::OnExecuted(int64_t bytes, double seconds) {
  if (seconds <= 0) return false;
  latency_.OnBucket(static_cast<double>(bytes), seconds);
  if (bytes < kLeastBucketBytes / 2) return false;
  const double latency = std::min(latency_.seconds(), seconds / 2);
  bytes_ = kMemory * bytes_ + static_cast<double>(bytes);
  seconds_ = kMemory * seconds_ + seconds - latency;
  const int64_t carried = carried_bytes_;
  const int64_t stretch = stretch_;
  carried_bytes_ = Follow(carried_bytes_, bytes_per_second() * kUsualSeconds);
  stretch_ = Follow(stretch_, 2 * kLatencies * latency_.seconds() / kUsualSeconds);
  return carried_bytes_ != carried || stretch_ != stretch;
}

Limits Pace::Of(const Limits& limits) const {
  if (limits.pace_seconds <= 0 || carried_bytes_ == INT64_MAX) return limits;
  const double times = std::max(limits.pace_seconds / kUsualSeconds, static_cast<double>(stretch_));
  const auto bytes = std::max(static_cast<int64_t>(static_cast<double>(carried_bytes_) * times),
                              kLeastBucketBytes);
  Limits result = limits;
  result.fusion_threshold_bytes = std::min(limits.fusion_threshold_bytes, bytes);
  result.partition_bytes = std::min(limits.partition_bytes, bytes);
  return result;
}

}  // namespace horoscale
