// StepProfile: the operations of a training step, in the order in which they become ready. Observed
// by a coordinator for the cost model. Pure.
//
// A step begins with the first named operation that recurs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/negotiator.h"
#include "core/request.h"

namespace horoscale {

struct StepOperation {
  SharedSignature signature = {};
  std::optional<Encoding> chosen = {};  // of an adaptive one
  int priority = 0;
  int64_t bytes = 0;
  // Since the beginning of the step, in seconds of computation: while the program is blocked it
  // stands still.
  double ready = 0;
};

struct ProfiledStep {
  std::vector<StepOperation> operations;
  double seconds = 0;
  double computed_seconds = 0;  // of these, in which the program was not blocked
};

class StepProfile {
 public:
  // An operation is ready on all members. An unnamed one has an empty name.
  void OnReady(std::string_view name, StepOperation operation, double now);
  // The program was blocked for so long in a bucket.
  void OnBlocked(double seconds) { blocked_ += seconds; }

  // Of the last few steps, the one of median duration; nothing: there was none.
  std::optional<ProfiledStep> Usual() const;

 private:
  struct Ready {
    std::string name;
    StepOperation operation;
    double at = 0;
    double blocked_before = 0;
  };

  void EndStep(size_t first, double now);

  std::vector<Ready> current_;
  std::unordered_map<std::string, size_t> positions_;  // in current_
  double blocked_ = 0;
  std::deque<ProfiledStep> steps_;
};

}  // namespace horoscale
