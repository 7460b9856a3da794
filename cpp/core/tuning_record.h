// A line of the tuning log: what the tuner of a process set measured, predicted or decided.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/limits.h"

namespace horoscale {

struct TuningRecord {
  uint64_t step = 0;  // since the start
  Limits limits;
  double seconds = 0;            // of a step, measured; 0: it was not
  double predicted_seconds = 0;  // of a step; 0: it was not
  std::string_view what;
  std::string name = {};      // of the operation whose encoding has changed
  std::string encoding = {};  // its new one
  std::string why = {};
  bool is_last = false;  // the tuner has ended with these limits
  double saved = 0;      // if is_last: the fraction of the step time that they save over the
                         // initial limits
};

}  // namespace horoscale
