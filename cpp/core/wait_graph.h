// Do ranks wait for each other? Puts together what ranks block in and who is missed there. Pure.
//
// Both are told only while a stall is being reported: a rank tells in which calls its threads have
// been blocked for the warning period, a coordinator which ranks an operation of its set has been
// missing for that long. A statement holds from when the wait began to when it was made. Ranks that
// are blocked in a circle at one moment will never go on by themselves: blocking calls in crossed
// order, in one set or across several. So are ranks of which each waits for one of several, where
// all of these are among them: receives of any rank.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/messages.h"

namespace horoscale {

class WaitGraph {
 public:
  // Statements are made again each period, and forgotten when that doesn't happen.
  explicit WaitGraph(double period) : period_(period) {}

  void Add(int from_rank, uint32_t process_set, uint32_t incarnation, const StallNotice& notice,
           double now);

  // A circle of blocked ranks, or several that are joined, in words, if there is one that was not
  // told within the last period.
  std::optional<std::string> TakeCircle(double now);

 private:
  struct Operation {
    uint32_t process_set = 0;
    uint32_t incarnation = 0;
    std::string name;
    auto operator<=>(const Operation&) const = default;
  };
  struct Span {
    double since = 0;
    double until = 0;
    bool Holds(double time) const { return since <= time && time <= until; }
  };
  struct Missed {
    Span span;
    std::vector<int> ranks;
  };
  using Blocked = std::map<Operation, Span>;  // of one rank: its threads may block in several
  // A rank of a circle, and what keeps it there.
  struct Link {
    int rank;
    const Operation* operation;
    Span span;
  };

  // What a rank is blocked in at some time, and whom it misses there: all of them, or any.
  struct Wait {
    const Operation* operation;
    Span span;
    const std::vector<int>* missed;
    bool one_would_do;
  };

  void Forget(double now);
  std::vector<Wait> WaitsOf(int rank, double time) const;
  std::set<int> StuckAt(double time) const;
  std::optional<std::string> TakeKnot(double now);
  std::string DescribeKnot(const std::set<int>& knot, double time, double now) const;
  std::optional<std::vector<Link>> FindCircle(int start, double time) const;
  static std::string Describe(const std::vector<Link>& circle, double now);

  double period_;
  std::map<int, Blocked> blocked_;  // by rank
  std::map<Operation, Missed> missed_;
  std::map<int, std::map<Operation, Missed>> choices_;  // by rank: one of the missed would do
  bool changed_ = false;
  std::map<std::string, double> told_;  // by the ranks of a circle
};

}  // namespace horoscale
