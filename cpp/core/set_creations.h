// SetCreations: the protocol with which members create a process set without the other ranks. Pure.
//
//     member           leader (lowest member)      member
//        │── ask ─────────▶│◀──────── ask ──────────│     each when its caller calls
//        │◀──────── made ──│── made ───────────────▶│     all have called: the set has a number
//        │── ready ───────▶│◀─────── ready ─────────│     it is registered here
//        │◀─────── begin ──│── begin ──────────────▶│     it is registered everywhere: calls return
//
// So no frame of a set can arrive before the set is registered, and numbers of different leaders
// need no order. Calls are matched by their ranks and tag; the n-th call of each member is the n-th
// attempt. An attempt that fails (because members contradict each other or one of them times out)
// fails for all of its members, including those that call later. Each member detects the loss of
// other members itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/set_creation_frames.h"

namespace horoscale {

class SetCreations {
 public:
  // The actions for the caller, in this order.
  struct Step {
    enum class Kind {
      kSend,      // `frame` to `rank`
      kRegister,  // `set`, which is the leader `rank`'s `number`
      kDiscard,   // this set, because of `cause`
      kBegun,     // `call` has succeeded with this set
      kFailed,    // `call` has failed: `cause`
    };
    Kind kind;
    int rank;
    uint32_t number = 0;
    uint64_t call = 0;
    NewSet set = {};
    Status cause = {};
    SetCreationFrame frame = {};
  };
  // The process sets that are registered on this rank.
  class Registered {
   public:
    virtual ~Registered() = default;
    // The ID of a set of exactly these ranks, in this order.
    virtual std::optional<int> IdOf(const std::vector<int>& ranks) const = 0;
    virtual bool HasId(int id) const = 0;
  };

  // The number of calls of one member that a leader queues while its own caller has not called.
  static constexpr size_t kMostAsks = 4096;

  SetCreations(int rank, int size, const Registered& registered)
      : rank_(rank), size_(size), registered_(registered) {}

  // Starts the creation of a set that includes this rank. Returns the number of the call, which
  // steps refer to. kDuplicateName: a call with the same ranks and tag is pending; kRankFailed: a
  // member is lost.
  Result<uint64_t> Call(NewSet set);
  // A failed status means that the frame is invalid.
  Status OnFrame(int from_rank, const SetCreationFrame& frame);
  // `only_here`: only this rank has lost it; the other members may not have.
  void OnLost(int lost_rank, const Status& cause, bool only_here);
  // A set has failed, possibly one that is registered but has not begun.
  void OnSetFailed(int leader, uint32_t number, const Status& cause);
  // The caller's wait has timed out.
  void GiveUp(uint64_t call, const Status& cause);

  std::vector<Step> TakeSteps() { return std::exchange(steps_, {}); }

  // The ranks that a call waits for, as far as this rank knows; the leader knows all of them.
  std::vector<int> MissedBy(uint64_t call) const;

 private:
  using Key = std::pair<std::vector<int>, std::string>;  // sorted ranks, tag
  struct OwnCall {
    NewSet set;
    Key key;
    int leader;
    std::optional<uint32_t> number;  // number of the set, when it is registered here
  };
  struct Ask {
    uint64_t call;
    NewSet set;
  };
  struct Attempt {
    std::map<int, Ask> asks;  // by rank
    Status failure;
  };
  struct Made {
    Key key;
    std::map<int, Ask> asks;
    std::set<int> awaited;  // members that have not registered it
  };
  static Key KeyOf(const NewSet& set);

  void Send(int to_rank, SetCreationFrame frame);
  // As a member.
  void OnMade(int leader, const SetCreationFrame& frame);
  void OnBegin(int leader, uint32_t number);
  OwnCall End(uint64_t call);
  void Fail(uint64_t call, const Status& cause);
  void Withdraw(const NewSet& set, const Status& cause);
  // As the leader.
  Status OnAsk(int from_rank, const SetCreationFrame& frame);
  void OnReady(int from_rank, uint32_t number);
  void OnWithdrawn(int from_rank, const SetCreationFrame& frame);
  Attempt& AttemptFor(int from_rank, const Key& key);
  void EndIfComplete(const Key& key);
  void Decide(const Key& key, const Attempt& attempt);
  Result<uint32_t> TakeNumber(const Attempt& attempt);
  Status CheckAgreement(const Attempt& attempt) const;
  void Refuse(const std::map<int, Ask>& asks, const Status& cause);
  void Refuse(int to_rank, uint64_t call, const Status& cause);
  void ForgetAttemptsOf(int lost_rank, const Status& cause);
  const Status* LossIn(const std::vector<int>& ranks) const;

  const int rank_;
  const int size_;
  const Registered& registered_;
  uint64_t last_call_ = 0;
  uint32_t next_number_ = 0;
  std::map<uint64_t, OwnCall> calls_;
  std::map<Key, uint64_t> calls_by_key_;
  std::map<int, Status> lost_;
  // As the leader.
  std::map<Key, std::deque<Attempt>> attempts_;
  std::map<int, size_t> asks_of_;  // number of asks in attempts_, by rank
  std::map<uint32_t, Made> made_;  // sets that have not begun
  std::vector<Step> steps_;
};

}  // namespace horoscale
