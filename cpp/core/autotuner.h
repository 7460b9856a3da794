// Autotuner: searches for the limits with the shortest steps while the job runs. It ends after a
// bounded number of steps with the best limits, or with the initial ones if the best are not
// significantly faster. Pure.
//
// A comparison consists of a few pairs of blocks of steps, one with the best limits so far, the
// other with the candidate, so that other load on the machine affects both. The first candidate is
// the prediction of a cost model, if there is one. Others differ from the best in one limit, by a
// factor of four: downwards as long as that helps, otherwise upwards. As long as no comparison has
// contradicted the model, those of which it expects nothing are not tried. At the end, the winner
// is compared with the initial limits again, with a stricter criterion.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/limits.h"
#include "core/tuning_record.h"

namespace horoscale {

class Autotuner {
 public:
  using Record = TuningRecord;
  // What a cost model says.
  struct Prediction {
    Limits best;
    std::function<double(const Limits&)> seconds;  // of a step
    std::string why;                               // for the log
  };
  // It always ends after this many steps.
  static const uint64_t kMaxSteps;

  // `step`: the number of steps before.
  explicit Autotuner(const Limits& given, std::optional<Prediction> prediction = {},
                     uint64_t step = 0);

  // The limits to use from now on.
  const Limits& limits() const { return TryingCandidate() ? candidate_ : reference_; }
  bool finished() const { return finished_; }

  // A step has ended.
  void OnStep(double seconds);
  // Something else has changed what steps take: the current pair begins again.
  void OnDisturbed();

  std::vector<Record> TakeRecords();

 private:
  bool TryingCandidate() const;
  bool BeginWithPrediction();
  double Predicted(const Limits& limits) const;
  bool IsHopeless(const Limits& limits) const;
  void EndBlock();
  void EndPair();
  void Compare(const Limits& reference, const Limits& candidate, int pairs, int needed,
               double margin);
  void OnVerdict(bool candidate_won);
  void SearchOn();
  bool Propose();
  void Turn();
  void Note(const Limits& limits, double seconds, std::string_view what, std::string why = {});

  const Limits given_;
  std::optional<Prediction> prediction_;  // nothing once it has been contradicted
  Limits best_;
  bool finished_ = false;
  bool predicted_ = false;  // the current comparison is the first, of the prediction
  bool final_ = false;      // the last comparison, with the initial limits

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

  uint64_t step_;
  int disturbed_ = 0;  // how often
  std::vector<Record> records_;
};

}  // namespace horoscale
