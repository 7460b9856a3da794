#include "core/pace.h"

#include <algorithm>
#include <bit>

namespace horoscale {
namespace {

// What an urgent tensor may wait for the bucket under way.
constexpr double kPatienceSeconds = 0.012;

// Below it a bucket costs more than it carries. What is smaller tells of delays, not of the pace.
constexpr int64_t kLeastBucketBytes = 128 << 10;

// How much a bucket leaves of those before it.
constexpr double kMemory = 0.9;

}  // namespace

bool Pace::OnExecuted(int64_t bytes, double seconds) {
  if (bytes < kLeastBucketBytes / 2 || seconds <= 0) return false;
  bytes_ = kMemory * bytes_ + static_cast<double>(bytes);
  seconds_ = kMemory * seconds_ + seconds;
  constexpr double kMost = uint64_t{1} << 40;
  const double carried = std::min(bytes_ / seconds_ * kPatienceSeconds, kMost);
  // A bucket as large as now remains until it is too large by half, or twice as much fits.
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
