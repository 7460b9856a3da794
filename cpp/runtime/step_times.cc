#include "runtime/step_times.h"

#include <algorithm>

namespace horoscale {
namespace {

// A marker that has not recurred for this many of its steps, and for this time, is replaced.
constexpr double kLostSteps = 8;
constexpr double kLostSeconds = 2;
// Programs that use a new name for each operation have no steps.
constexpr size_t kMaxNames = 4096;

}  // namespace

void StepTimes::OnSubmitted(std::string_view name, double at) {
  if (name.empty()) return;
  if (name == marker_) {
    const double blocked = waits_.Seconds();
    const double exposed = exposed_ - exposed_before_;
    longest_ = std::max(longest_, at - marked_at_);
    ++totals_.steps;
    totals_.seconds += at - marked_at_;
    totals_.exposed_seconds += exposed;
    totals_.waiting_seconds += std::max(0.0, blocked - blocked_before_ - exposed);
    Mark(name, at);
    return;
  }
  if (!marker_.empty() && at - marked_at_ < std::max(kLostSeconds, kLostSteps * longest_)) return;
  if (seen_.size() >= kMaxNames) seen_.clear();
  if (!seen_.emplace(name).second) {
    longest_ = 0;
    Mark(name, at);
    seen_.clear();
  }
}

double StepTimes::OnExecuted(double started_at, double now) {
  const double begin = std::max(started_at, counted_until_);
  counted_until_ = std::max(counted_until_, now);
  const double exposed = begin < now ? waits_.Within(begin, now) : 0;
  exposed_ += exposed;
  return exposed;
}

void StepTimes::Mark(std::string_view name, double at) {
  if (name != marker_) marker_ = name;
  marked_at_ = at;
  blocked_before_ = waits_.Seconds();
  exposed_before_ = exposed_;
}

}  // namespace horoscale
