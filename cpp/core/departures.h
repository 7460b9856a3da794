// Departures: which ranks have left the job, how, and the consequences for a process set, as seen
// by one rank. Pure.
//
// Survivors learn of several exits in any order, and most are only consequences of the first.
// Therefore a rank's goodbye message takes precedence over the loss of its link.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/status.h"
#include "core/messages.h"

namespace horoscale {

class Departures {
 public:
  // Records the rank's goodbye.
  void OnGoodbye(int rank, Goodbye goodbye) { goodbyes_[rank] = std::move(goodbye); }

  // The rank has become unreachable; `reason` describes how that was detected. Returns the cause:
  // the first failure that the rank knew of, or that it left, or the reason.
  const Status& OnLost(int rank, const Status& reason);

  // By rank: the cause of each loss.
  const std::map<int, Status>& lost() const { return lost_; }
  // Whether the rank is lost and left normally.
  bool LeftCleanly(int rank) const;

  // The consequence of the loss of a member for a set of these ranks.
  struct Verdict {
    bool at_once = true;    // false: operations in which the rank participated are finished first,
    ExecutedUpTo executed;  // that is, everything up to here
    Status cause;
  };
  Verdict ForSet(int lost_rank, uint32_t process_set, uint32_t incarnation,
                 std::span<const int> ranks) const;

  // This rank's goodbye, without its progress. `reason` is empty unless this rank failed; `harm` is
  // the first failure of an operation here that another rank caused, if any. The root cause is
  // passed on, because a peer may learn of this exit first.
  Goodbye MakeGoodbye(int own_rank, const std::string& reason, const Status& harm) const;

 private:
  std::map<int, Goodbye> goodbyes_;
  std::map<int, Status> lost_;
};

}  // namespace horoscale
