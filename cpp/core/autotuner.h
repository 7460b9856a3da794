// Autotuner: searches for the limits with the shortest steps while the job runs. It ends after a
// bounded number of steps with the best limits, or with the initial ones if the best are not
// significantly faster. Pure.
//
// A comparison consists of a few pairs of blocks of steps, one with the best limits so far, the
// other with the candidate, so that other load on the machine affects both. A candidate differs
// from the best in one limit, by a factor of four: downwards as long as that helps, otherwise
// upwards. At the end, the winner is compared with the initial limits again, with a stricter
// criterion.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/limits.h"

namespace horoscale {

class Autotuner {
 public:
  // An action of the tuner, for the log.
  struct Record {
    uint64_t step = 0;  // since the start
    Limits limits;
    double seconds = 0;  // the median step time of the block; 0 in verdicts
    std::string_view what;
    bool is_last = false;  // the tuner has ended with these limits
    double saved = 0;      // if is_last: the fraction of the step time that they save over the
                           // initial limits
  };
  // It always ends after this many steps.
  static const uint64_t kMaxSteps;

  explicit Autotuner(const Limits& given);

  // The limits to use from now on.
  const Limits& limits() const { return TryingCandidate() ? candidate_ : reference_; }
  bool finished() const { return finished_; }

  // A step has ended.
  void OnStep(double seconds);

  std::vector<Record> TakeRecords();

 private:
  enum Knob : size_t { kCredit, kPartition, kFusion, kNumKnobs };

  bool TryingCandidate() const;
  void EndBlock();
  void EndPair();
  void Compare(const Limits& reference, const Limits& candidate, int pairs, int needed,
               double margin);
  void OnVerdict(bool candidate_won);
  void SearchOn(bool candidate_won);
  bool Propose();
  void Turn();
  void Note(double seconds, std::string_view what);

  const Limits given_;
  Limits best_;
  bool finished_ = false;
  bool final_ = false;  // the last comparison, with the initial limits

  // The current comparison.
  Limits reference_;
  Limits candidate_;
  int pairs_ = 0;
  int needed_ = 0;
  double margin_ = 0;
  int blocks_ = 0;
  int won_ = 0;
  int lost_ = 0;
  std::array<double, 2> times_{};   // of the pair: reference, candidate
  std::array<double, 2> totals_{};  // of all pairs

  // The current block.
  int skip_;
  std::vector<double> steps_;

  // The search: which limit, and in which direction.
  size_t knob_ = 0;
  bool upwards_ = false;
  int moves_ = 0;

  uint64_t step_ = 0;
  std::vector<Record> records_;
};

}  // namespace horoscale
