// Who has left the job, how, and what that means for a process set: the verdict of one rank on the
// ranks that it has lost. Pure.
//
// Survivors hear of several ends in any order, and most ends are only the consequence of the first:
// what a rank said when it left counts more than that it is gone.
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
  // The rank said this before it left.
  void OnGoodbye(int rank, Goodbye goodbye) { goodbyes_[rank] = std::move(goodbye); }

  // The rank can't be reached any more; `reason` says how that was seen. Returns the cause: the
  // first failure that the rank knew of, or that it left, or the reason.
  const Status& OnLost(int rank, const Status& reason);

  // By rank: the cause of each loss.
  const std::map<int, Status>& lost() const { return lost_; }
  // Whether the rank is lost and left in good order.
  bool LeftCleanly(int rank) const;

  // What the loss of a member means for a set of these ranks.
  struct Verdict {
    bool at_once = true;    // false: what the rank took part in is finished first,
    ExecutedUpTo executed;  // which is everything up to here
    Status cause;
  };
  Verdict ForSet(int lost_rank, uint32_t process_set, uint32_t incarnation,
                 std::span<const int> ranks) const;

  // What this rank says when it leaves, without how far it got. `reason` is empty unless it failed
  // itself; `harm` is the first failure that an operation here ended with because of another rank,
  // if there was one. The first cause is passed on: a peer may hear of this end first.
  Goodbye MakeGoodbye(int own_rank, const std::string& reason, const Status& harm) const;

 private:
  std::map<int, Goodbye> goodbyes_;
  std::map<int, Status> lost_;
};

}  // namespace horoscale
