// BucketLatency: what a bucket takes apart from its bytes. Estimated from recent buckets of
// different sizes. Pure.
#pragma once

#include <array>
#include <cstddef>

namespace horoscale {

class BucketLatency {
 public:
  void OnBucket(double bytes, double seconds);

  // In seconds; 0 until buckets of different sizes have been measured.
  double seconds() const { return latency_; }

 private:
  struct Bucket {
    double bytes;
    double seconds;
  };

  void Fit(size_t count);

  std::array<Bucket, 32> recent_{};
  size_t count_ = 0;
  double latency_ = 0;
};

}  // namespace horoscale
