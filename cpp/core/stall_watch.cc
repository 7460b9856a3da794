#include "core/stall_watch.h"

#include <iterator>

namespace horoscale {

void StallWatch::Add(UnitId unit, const WaitClock& clock) {
  if (period_ <= 0) return;
  if (unit >= position_.size()) position_.resize(unit + 1, waiting_.end());
  auto place = waiting_.end();
  while (place != waiting_.begin() && std::prev(place)->clock.told > clock.told) --place;
  position_[unit] = waiting_.insert(place, Waiting{unit, clock});
}

void StallWatch::Remove(UnitId unit) {
  if (period_ <= 0) return;
  waiting_.erase(position_[unit]);
}

std::vector<StallWatch::Overdue> StallWatch::TakeOverdue(double now) {
  std::vector<Overdue> overdue;
  while (!waiting_.empty() && waiting_.front().clock.told + period_ <= now) {
    Waiting& oldest = waiting_.front();
    overdue.push_back({oldest.unit, now - oldest.clock.since});
    oldest.clock.told = now;
    waiting_.splice(waiting_.end(), waiting_, waiting_.begin());
  }
  return overdue;
}

}  // namespace horoscale
