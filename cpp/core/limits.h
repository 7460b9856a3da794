// How much a coordinator puts together, and publishes ahead. Configured, or found by an Autotuner.
#pragma once

#include <cstdint>

namespace horoscale {

struct Limits {
  int64_t fusion_threshold_bytes = 128 << 20;  // of a bucket
  int64_t partition_bytes = 16 << 20;          // tensors above are cut; 0: never
  // Published and not executed yet, at most; one bucket always may be.
  int64_t credit_bytes = 64 << 20;
  bool operator==(const Limits&) const = default;
};

}  // namespace horoscale
