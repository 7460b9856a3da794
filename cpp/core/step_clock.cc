#include "core/step_clock.h"

namespace horoscale {
namespace {

// The marker is obsolete if another name has occurred this often since, for this many times the
// duration of a step. Other names may occur several times in one step.
constexpr int kLost = 5;
constexpr double kLostSteps = 10;

// For a split unit, whether it is the first part.
bool IsBegun(const PlanItem& item) {
  return item.whole || (item.tensor == 0 && item.begin == 0 && item.slot);
}

bool IsNamed(const PlanItem& item) {
  return item.slot && item.index == 0 && (!item.request || item.request->index == 0);
}

}  // namespace

std::optional<double> StepClock::OnEntry(const PlanEntry& entry, double now) {
  if (entry.type != PlanEntry::Type::kExecute) return {};
  std::optional<double> ended;
  for (const PlanItem& item : entry.items) {
    if (!IsNamed(item) || !IsBegun(item)) continue;
    if (const auto seconds = OnSlot(*item.slot, now)) ended = seconds;
  }
  return ended;
}

std::optional<double> StepClock::OnSlot(uint32_t slot, double now) {
  if (marker_ == slot) {
    step_seconds_ = now - marked_at_;
    marked_at_ = now;
    seen_.clear();
    return step_seconds_;
  }
  Seen& seen = seen_.try_emplace(slot, Seen{0, now}).first->second;
  if (++seen.times < (marker_ ? kLost : 2)) return {};
  if (marker_ && now - marked_at_ < kLostSteps * step_seconds_) return {};
  marker_ = slot;
  step_seconds_ = (now - seen.first) / (seen.times - 1);
  marked_at_ = now;
  seen_.clear();
  return {};
}

}  // namespace horoscale
