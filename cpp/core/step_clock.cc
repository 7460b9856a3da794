#include "core/step_clock.h"

namespace horoscale {
namespace {

// The marker belongs to something that is over when others have come so often since.
constexpr int kLost = 50;

// Of a unit that was cut, its first part.
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
    const double seconds = now - marked_at_;
    marked_at_ = now;
    seen_.clear();
    return seconds;
  }
  if (++seen_[slot] < (marker_ ? kLost : 2)) return {};
  marker_ = slot;
  marked_at_ = now;
  seen_.clear();
  return {};
}

}  // namespace horoscale
