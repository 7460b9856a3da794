// How long a training step takes, seen from the plan: a name that comes again begins another step.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "core/messages.h"

namespace horoscale {

class StepClock {
 public:
  // The seconds of the step that ends with this entry, if one does. Steps are counted by one named
  // operation: the first that is seen twice, and another one when that doesn't come any more.
  // Unnamed operations tell no steps.
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
  std::unordered_map<uint32_t, Seen> seen_;  // other slots, since the marker
};

}  // namespace horoscale
