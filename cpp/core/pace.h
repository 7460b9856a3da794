// How large buckets may be on a slow network: no larger than what it carries while an urgent tensor
// may have to wait. From what buckets have taken so far. Pure.
#pragma once

#include <cstdint>

#include "core/limits.h"

namespace horoscale {

class Pace {
 public:
  // A bucket was executed; true if that changes what Of() says.
  bool OnExecuted(int64_t bytes, double seconds);

  // These limits, and none above what a bucket may have. Tensors that are never cut still aren't.
  Limits Of(const Limits& limits) const;

 private:
  double bytes_ = 0;  // of the last buckets, the older the less
  double seconds_ = 0;
  int64_t bucket_bytes_ = INT64_MAX;  // a power of two, so that it seldom changes
};

}  // namespace horoscale
