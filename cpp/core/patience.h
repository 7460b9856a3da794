// Patience: after how many steps whose communication is hidden adaptive compression may compress
// less. If that fails, it waits twice as long before the next attempt, so that a choice whose
// milder neighbor is not enough is seldom disturbed. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace horoscale {

class Patience {
 public:
  static constexpr int kLeast = 3;
  static constexpr int kMost = 96;

  // The number of consecutive steps, at the bandwidth that is measured now. What failed on another
  // network says nothing about this one.
  int Steps(double bandwidth) {
    if (bandwidth > kOther * failed_at_bandwidth_ || bandwidth * kOther < failed_at_bandwidth_) {
      steps_ = kLeast;
    }
    return steps_;
  }

  // In this step the choice became milder.
  void OnLess(uint64_t step) { less_at_ = step; }
  // In this step it became stronger: soon after OnLess(), that was a failure.
  void OnMore(uint64_t step, double bandwidth) {
    const bool failed = less_at_ != 0 && step - less_at_ <= kSoon;
    steps_ = failed ? std::min(2 * steps_, kMost) : kLeast;
    failed_at_bandwidth_ = bandwidth;
    less_at_ = 0;
  }

 private:
  static constexpr uint64_t kSoon = 10;  // steps
  static constexpr double kOther = 2;    // factor between bandwidths

  int steps_ = kLeast;
  uint64_t less_at_ = 0;  // 0: not since the last OnMore()
  double failed_at_bandwidth_ = 0;
};

}  // namespace horoscale
