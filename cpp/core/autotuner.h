// Which limits make the steps of a job shortest? Tries them while the job runs, and ends after a
// bounded number of steps with the best, or with those it was given where the best is not surely
// faster. Pure.
//
// A comparison is a few pairs of blocks of steps, one with the best limits so far, one with the
// candidate: whatever else makes the machine slow meets both. Candidates differ from the best in
// one limit, by a factor of four: downwards as long as that helps, otherwise upwards. What has won
// is compared with the given limits once more, more strictly.
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
  // What a tuner did, for the log.
  struct Record {
    uint64_t step = 0;  // since the start
    Limits limits;
    double seconds = 0;  // of a step: the median of the block; 0 in verdicts
    std::string_view what;
    bool is_last = false;  // it has ended, with these limits
    double saved = 0;      // then: which part of a step's time with the given limits they save
  };
  // After so many steps it has ended, whatever it measures.
  static const uint64_t kMaxSteps;

  explicit Autotuner(const Limits& given);

  // What is in force from now on.
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
  bool final_ = false;  // the last comparison, with the given limits

  // The comparison under way.
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

  // The block under way.
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
