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

class StallWatch {
 public:
  struct Overdue {
    UnitId unit = 0;
    double seconds_waiting = 0;
  };

  // period 0: watches nothing.
  explicit StallWatch(double period) : period_(period) {}

  void Add(UnitId unit, double now);
  void Remove(UnitId unit);
  // The units that wait for `period` now, or for another one since they were returned last.
  std::vector<Overdue> TakeOverdue(double now);

 private:
  struct Waiting {
    UnitId unit;
    double since;
    double due;
  };

  double period_;
  std::list<Waiting> waiting_;  // by due: new ones and returned ones are both due a period from now
  std::vector<std::list<Waiting>::iterator> position_;  // by UnitId
};

}  // namespace horoscale
