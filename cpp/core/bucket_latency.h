// BucketLatency: what a bucket takes apart from its bytes. Estimated from recent buckets of
// different sizes. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace horoscale {

class BucketLatency {
 public:
  void OnBucket(double bytes, double seconds);

  // In seconds; 0 until buckets of different sizes have been measured.
  double seconds() const { return latency_; }

 private:
  struct Bucket {
    double bytes = 0;
    double seconds = 0;
  };
  // Buckets whose sizes differ by less than a factor of two. They are rare in one size and frequent
  // in another, so each size remembers its own.
  struct Size {
    // The median of the last three, by time. It ignores a bucket that waited for a late rank.
    Bucket Usual() const;

    std::array<Bucket, 3> last;
    size_t count = 0;
    uint64_t at = 0;  // the number of buckets when the last one came
  };

  void Fit();

  std::array<Size, 48> sizes_;  // by the logarithm of the bytes
  uint64_t buckets_ = 0;
  double latency_ = 0;
};

}  // namespace horoscale
