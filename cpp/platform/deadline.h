// Deadline: the point in monotonic time at which a wait times out.
#pragma once

#include <algorithm>
#include <limits>

#include "platform/clock.h"

namespace horoscale {

// Seconds of a wait without a limit.
inline constexpr double kForever = std::numeric_limits<double>::infinity();

class Deadline {
 public:
  static Deadline After(double seconds) { return Deadline(MonotonicSeconds() + seconds); }
  static Deadline Never() { return Deadline(kForever); }

  double SecondsLeft() const { return std::max(0.0, at_ - MonotonicSeconds()); }
  bool Passed() const { return MonotonicSeconds() >= at_; }
  double at() const { return at_; }

 private:
  explicit Deadline(double at) : at_(at) {}
  double at_;  // as MonotonicSeconds()
};

}  // namespace horoscale
