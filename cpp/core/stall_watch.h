// StallWatch: records since when each unit has waited for members, and reports units that have
// waited too long, each once per warning period.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "base/types.h"
#include "core/negotiator.h"

namespace horoscale {

struct StallReport {
  std::string display_name;
  OpKind kind = OpKind::kAllreduce;
  std::vector<int> missing_ranks;  // global
  std::vector<int> ready_ranks;    // global; joined ranks are neither
  double seconds_waiting = 0;
};

// When a wait began, and when it was last reported; initially the same.
struct WaitClock {
  double since = 0;
  double told = 0;
};

class StallWatch {
 public:
  struct Overdue {
    UnitId unit = 0;
    double seconds_waiting = 0;
  };

  // A period of 0 disables it.
  explicit StallWatch(double period) : period_(period) {}

  // Continues the clock of a wait that began under another key.
  void Add(UnitId unit, const WaitClock& clock);
  void Remove(UnitId unit);
  // The units that have waited for `period` since they were added or last returned.
  std::vector<Overdue> TakeOverdue(double now);

 private:
  struct Waiting {
    UnitId unit;
    WaitClock clock;
  };

  double period_;
  std::list<Waiting> waiting_;  // ordered by their last report; new and returned ones come last
  std::vector<std::list<Waiting>::iterator> position_;  // by UnitId
};

}  // namespace horoscale
