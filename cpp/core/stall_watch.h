// Who keeps the others waiting? Remembers since when each unit waits for members, and tells which
// have waited too long, each once per warning period.
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

// Since when something waits, and when that was said last; at first the same.
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

  // period 0: watches nothing.
  explicit StallWatch(double period) : period_(period) {}

  // Of what was waited for before, under another key, the clock goes on.
  void Add(UnitId unit, const WaitClock& clock);
  void Remove(UnitId unit);
  // The units that wait for `period` now, or for another one since they were returned last.
  std::vector<Overdue> TakeOverdue(double now);

 private:
  struct Waiting {
    UnitId unit;
    WaitClock clock;
  };

  double period_;
  std::list<Waiting> waiting_;  // by when they were told: new and returned ones come last
  std::vector<std::list<Waiting>::iterator> position_;  // by UnitId
};

}  // namespace horoscale
