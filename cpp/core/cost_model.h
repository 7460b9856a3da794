// CostModel: predicts the time of a training step for any limits, from one observed step, the
// measured network and the pace. Pure.
//
// The observed operations become ready when they did, counted in seconds of computation. A real
// Scheduler with these limits forms the buckets, which the network carries one after the other:
//
//   a bucket = latency + sum over its parts of (bytes sent / bandwidth + bytes encoded / coding)
//
// After the last operation has become ready, the rest of the computation, R, remains (the next
// forward pass). If the program waits for everything first, a step ends at
//
//   serial = max(last ready, last bucket's end) + R
//
// If it overlaps, operations are needed one after the other, the most urgent first, at equal
// distances in R. Each part of R begins when the part before has ended and its operation is done,
// which gives `overlapped`. The prediction is between the two:
//
//   step = overlap * overlapped + (1 - overlap) * serial
//
// where `overlap`, from 0 to 1, is the value that predicts the observed step from the limits with
// which it was observed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/adaptive_encoding.h"
#include "core/limits.h"
#include "core/pace.h"
#include "core/step_profile.h"

namespace horoscale {

class CostModel {
 public:
  // `limits`: with which the step was observed.
  CostModel(ProfiledStep step, const NetworkState& network, const Pace& pace, const Limits& limits);

  // The seconds of a step.
  double Predict(const Limits& limits) const;
  // The limits with the shortest predicted step among LimitGrid(from). Of almost equal ones, those
  // that differ least from `from`.
  Limits Best(const Limits& from) const;

  double overlap() const { return overlap_; }
  // What it knows, for the log.
  std::string Describe() const;

 private:
  struct Times {
    double serial = 0;
    double overlapped = 0;
  };
  // Limits with equal effects have equal keys.
  using Effect = std::tuple<int64_t, int64_t, int64_t>;

  Effect EffectOf(const Limits& limits) const;
  int64_t Parts(int64_t partition_bytes) const;
  std::vector<double> Play(const Limits& limits) const;
  Times TimesOf(const std::vector<double>& done) const;

  ProfiledStep step_;
  NetworkState network_;
  Pace pace_;
  int64_t total_bytes_ = 0;
  std::vector<double> seconds_per_byte_;  // by operation
  std::vector<size_t> needed_;            // operations in the order of the forward pass
  double overlap_ = 0;
};

}  // namespace horoscale
