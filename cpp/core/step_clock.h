// StepClock: measures training steps from the plan: a repeated name starts a new step. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "core/messages.h"

namespace horoscale {

class StepClock {
 public:
  // Returns the duration of the step that this entry ends, if any, in seconds. Steps are counted by
  // one named operation, the marker: the first that is seen twice, or another one when that does
  // not recur. Unnamed operations are ignored.
  std::optional<double> OnEntry(const PlanEntry& entry, double now);

 private:
  struct Seen {
    int times;
    double first;  // when
  };

  std::optional<double> OnSlot(uint32_t slot, double now);

  std::optional<uint32_t> marker_;
  double marked_at_ = 0;
  double step_seconds_ = 0;                  // of the last step
  std::unordered_map<uint32_t, Seen> seen_;  // other slots since the marker
};

}  // namespace horoscale
