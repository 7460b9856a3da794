// Limits of fusion and of entries that are published ahead. Configured, or found by an Autotuner.
#pragma once

#include <cstdint>

namespace horoscale {

struct Limits {
  int64_t fusion_threshold_bytes = 128 << 20;  // of a bucket
  int64_t partition_bytes = 16 << 20;          // larger tensors are split; 0: never
  // Maximum number of bytes that are published and not executed yet; one bucket is always allowed.
  int64_t credit_bytes = 64 << 20;
  // On a slow network, buckets and parts are at most what it carries in this time; 0: no limit.
  double pace_seconds = 0.012;
  bool operator==(const Limits&) const = default;
};

}  // namespace horoscale
