// The monotonic clock, in seconds and nanoseconds since an arbitrary point.
#pragma once

#include <time.h>

#include <cstdint>

namespace horoscale {

inline int64_t MonotonicNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline double MonotonicSeconds() { return static_cast<double>(MonotonicNanoseconds()) * 1e-9; }

}  // namespace horoscale
