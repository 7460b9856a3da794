// WaitGraph: detects deadlocks from the calls in which ranks are blocked and the ranks that these
// wait for. Pure.
//
// Both are only reported during a stall: a rank reports the calls in which its threads have been
// blocked for the warning period, and a coordinator the ranks that have not called an operation of
// its set for that long. A report covers the time from the start of the wait to the report. Ranks
// that are blocked in a cycle at one time are deadlocked: they made blocking calls in different
// orders, in one set or across several. So are ranks that each wait for any one of several ranks,
// if all of these are among them: receives from any rank.
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
  // Reports are repeated each period, and expire otherwise.
  explicit WaitGraph(double period) : period_(period) {}

  void Add(int from_rank, uint32_t process_set, uint32_t incarnation, const StallNotice& notice,
           double now);

  // A description of a cycle of blocked ranks, or of several connected ones, if there is one that
  // was not reported within the last period.
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
  using Blocked = std::map<Operation, Span>;  // of one rank, whose threads may block in several
  // A rank of a cycle, and the operation in which it is blocked.
  struct Link {
    int rank;
    const Operation* operation;
    Span span;
  };

  // An operation in which a rank is blocked at some time, and the ranks that it waits for: all of
  // them, or any.
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
  std::map<int, std::map<Operation, Missed>> choices_;  // by rank: waits for any of the missing
                                                        // ranks
  bool changed_ = false;
  std::map<std::string, double> told_;  // by the ranks of a cycle
};

}  // namespace horoscale
