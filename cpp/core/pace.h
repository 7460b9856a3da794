// Pace: limits the size of buckets on a slow network to the amount that it transfers in the time an
// urgent tensor may have to wait. Based on the measured times of buckets. Pure.
#pragma once

#include <cstdint>

#include "core/limits.h"

namespace horoscale {

class Pace {
 public:
  // Records an executed bucket; returns true if that changes Of().
  bool OnExecuted(int64_t bytes, double seconds);

  // Returns these limits, reduced to the current size of buckets. If tensors are never split, they
  // still are not.
  Limits Of(const Limits& limits) const;

 private:
  double bytes_ = 0;  // exponentially weighted bytes of the last buckets
  double seconds_ = 0;
  int64_t bucket_bytes_ = INT64_MAX;  // a power of two, so that it rarely changes
};

}  // namespace horoscale
