#include "core/bucket_latency.h"

#include <algorithm>

namespace horoscale {
namespace {

constexpr size_t kLeastBuckets = 8;
// Sizes that differ by less say nothing about the latency: it stays as it was.
constexpr double kLeastRatio = 2;

}  // namespace

void BucketLatency::OnBucket(double bytes, double seconds) {
  recent_[count_++ % recent_.size()] = {bytes, seconds};
  const size_t filled = std::min(count_, recent_.size());
  if (filled >= kLeastBuckets) Fit(filled);
}

// A line through the medians of the smaller and of the larger half. Medians ignore the few buckets
// that waited for a late rank.
void BucketLatency::Fit(size_t count) {
  std::array<Bucket, 32> sorted = recent_;
  const auto at = [&](size_t i) { return sorted.begin() + static_cast<std::ptrdiff_t>(i); };
  std::sort(sorted.begin(), at(count),
            [](const Bucket& a, const Bucket& b) { return a.bytes < b.bytes; });
  const size_t half = count / 2;
  const Bucket small = {sorted[half / 2].bytes, 0};
  const Bucket large = {sorted[half + (count - half) / 2].bytes, 0};
  if (large.bytes < kLeastRatio * small.bytes) return;
  const auto median = [&](size_t begin, size_t end) {
    const auto middle = at(begin + (end - begin) / 2);
    std::nth_element(at(begin), middle, at(end),
                     [](const Bucket& a, const Bucket& b) { return a.seconds < b.seconds; });
    return middle->seconds;
  };
  const double below = median(0, half);
  const double above = median(half, count);
  if (above <= below) return;
  const double per_byte = (above - below) / (large.bytes - small.bytes);
  latency_ = std::max(below - per_byte * small.bytes, 0.0);
}

}  // namespace horoscale
