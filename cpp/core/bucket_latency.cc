#include "core/bucket_latency.h"

#include <algorithm>
#include <bit>

namespace horoscale {
namespace {

// Sizes that have not occurred in this many buckets are ignored.
constexpr uint64_t kRecent = 4096;
// Sizes that differ by less say nothing about the latency: it stays as it was.
constexpr double kLeastRatio = 2;

}  // namespace

void BucketLatency::OnBucket(double bytes, double seconds) {
  if (bytes < 1) return;
  const auto width = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(bytes)));
  Size& size = sizes_[std::min(width, sizes_.size() - 1)];
  size.last[size.count++ % size.last.size()] = {bytes, seconds};
  size.at = ++buckets_;
  Fit();
}

BucketLatency::Bucket BucketLatency::Size::Usual() const {
  std::array<Bucket, 3> sorted = last;
  const size_t filled = std::min(count, sorted.size());
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(filled),
            [](const Bucket& a, const Bucket& b) { return a.seconds < b.seconds; });
  return sorted[filled / 2];
}

// A line through the smallest and the largest size.
void BucketLatency::Fit() {
  const auto is_recent = [this](const Size& size) {
    return size.count > 0 && size.at + kRecent > buckets_;
  };
  const auto smallest = std::find_if(sizes_.begin(), sizes_.end(), is_recent);
  const auto largest = std::find_if(sizes_.rbegin(), sizes_.rend(), is_recent);
  const Bucket small = smallest->Usual();
  const Bucket large = largest->Usual();
  if (large.bytes < kLeastRatio * small.bytes || large.seconds <= small.seconds) return;
  const double per_byte = (large.seconds - small.seconds) / (large.bytes - small.bytes);
  latency_ = std::max(small.seconds - per_byte * small.bytes, 0.0);
}

}  // namespace horoscale
