// Pace: limits the size of buckets on a slow network to the amount that it transfers in the time an
// urgent tensor may have to wait, Limits::pace_seconds. Where a bucket has a high latency, it may
// take several times that. Based on the measured times of buckets. Pure.
#pragma once

#include <cstdint>

#include "core/bucket_latency.h"
#include "core/limits.h"

namespace horoscale {

class Pace {
 public:
  // Records an executed bucket; returns true if that changes Of().
  bool OnExecuted(int64_t bytes, double seconds);

  // Returns these limits, reduced to the current size of buckets. If tensors are never split, they
  // still are not.
  Limits Of(const Limits& limits) const;

  // What was measured; 0: not known. Encoding counts as a part of the network.
  double bytes_per_second() const { return seconds_ > 0 ? bytes_ / seconds_ : 0; }
  double latency_seconds() const { return latency_.seconds(); }

 private:
  double bytes_ = 0;  // exponentially weighted bytes of the last buckets
  double seconds_ = 0;
  BucketLatency latency_;
  // Powers of two, so that they rarely change.
  int64_t carried_bytes_ = INT64_MAX;  // in the usual time
  int64_t stretch_ = 1;  // how many times the usual time a bucket may take because of the latency
};

}  // namespace horoscale
