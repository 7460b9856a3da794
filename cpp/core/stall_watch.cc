#include "core/stall_watch.h"

namespace horoscale {

void StallWatch::Add(UnitId unit, double now) {
  if (period_ <= 0) return;
  if (unit >= position_.size()) position_.resize(unit + 1, waiting_.end());
  position_[unit] = waiting_.insert(waiting_.end(), Waiting{unit, now, now + period_});
}

void StallWatch::Remove(UnitId unit) {
  if (period_ <= 0) return;
  waiting_.erase(position_[unit]);
}

std::vector<StallWatch::Overdue> StallWatch::TakeOverdue(double now) {
  std::vector<Overdue> overdue;
  while (!waiting_.empty() && waiting_.front().due <= now) {
    Waiting& oldest = waiting_.front();
    overdue.push_back({oldest.unit, now - oldest.since});
    oldest.due = now + period_;
    waiting_.splice(waiting_.end(), waiting_, waiting_.begin());
  }
  return overdue;
}

}  // namespace horoscale
