// StepTail: how much of a step's communication follows its last operation. Pure.
//
// For programs that do not wait for operations in our calls: how long they are blocked is not
// known. But once the last operation of a step is ready on all members, no member has gradients
// left to compute, so what is executed from then on is not hidden. What is executed before is: it
// runs while some member still computes.
#pragma once

#include <algorithm>
#include <utility>

namespace horoscale {

class StepTail {
 public:
  // An operation is ready on all members. If it recurs, it begins another step.
  void OnReady(bool recurs, double now) {
    if (recurs) ended_ += seconds_;
    seconds_ = 0;
    ready_at_ = now;
  }

  // A bucket was executed in the `seconds` before `now`.
  void OnExecuted(double seconds, double now) {
    seconds_ += std::clamp(now - ready_at_, 0.0, seconds);
  }

  // The seconds of the steps that have ended since the last call.
  double Take() { return std::exchange(ended_, 0); }

 private:
  double ready_at_ = 0;  // the last operation
  double seconds_ = 0;   // since then
  double ended_ = 0;     // of the steps before
};

}  // namespace horoscale
