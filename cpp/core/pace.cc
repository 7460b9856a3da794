#include "core/pace.h"

#include <algorithm>
#include <bit>

namespace horoscale {
namespace {

// How long an urgent tensor may wait for the current bucket.
constexpr double kPatienceSeconds = 0.012;

// Smaller buckets are dominated by overhead, and their times measure latency instead of bandwidth.
constexpr int64_t kLeastBucketBytes = 128 << 10;

// The weight that remains for previous buckets.
constexpr double kMemory = 0.9;

}  // namespace

bool Pace::OnExecuted(int64_t bytes, double seconds) {
  if (bytes < kLeastBucketBytes / 2 || seconds <= 0) return false;
  bytes_ = kMemory * bytes_ + static_cast<double>(bytes);
  seconds_ = kMemory * seconds_ + seconds;
  constexpr double kMost = uint64_t{1} << 40;
  const double carried = std::min(bytes_ / seconds_ * kPatienceSeconds, kMost);
  // The size changes only if it is too large by half, or if twice as much fits.
  const auto fits = std::max(static_cast<int64_t>(carried), kLeastBucketBytes);
  const auto rounded = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fits)));
  const bool keeps = rounded < bucket_bytes_ && fits > bucket_bytes_ / 3 * 2;
  if (rounded == bucket_bytes_ || keeps) return false;
  bucket_bytes_ = rounded;
  return true;
}

Limits Pace::Of(const Limits& limits) const {
  Limits result = limits;
  result.fusion_threshold_bytes = std::min(limits.fusion_threshold_bytes, bucket_bytes_);
  result.partition_bytes = std::min(limits.partition_bytes, bucket_bytes_);
  return result;
}

}  // namespace horoscale
