// In which order does a rank launch the device operations of process sets that overlap?
//
// Kernels of two NCCL communicators that meet on one device may wait for each other's place on it:
// all ranks must launch them in one order. There is no rank that could decide it for all sets (it
// would take sets with it that it is not in), so the members of each operation agree on a stamp:
//
//   1. Each member proposes a stamp for the planned operation, larger than any it knows of.
//   2. The set's coordinator tells all members the largest proposal: that is the stamp.
//   3. A member launches what has the smallest stamp, once that stamp is agreed on. What is only
//      proposed still can't get a smaller one than its proposal, so that nothing overtakes.
//
// Stamps, with the set's incarnation to part equals, are one total order; in each set they follow
// the plan. Only engines are waited for, never a call of the user's code. A message from one member
// to another one is an operation of these two, planned when it has found its receive. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "base/status.h"

namespace horoscale {

// A clock that a stranger could bring to its end would stop all sets.
inline constexpr uint64_t kMaxLaunchStamp = UINT64_MAX / 2;

// What travels: a member's proposal to its coordinator, and the coordinator's decision to all.
struct LaunchStamp {
  uint64_t sequence = 0;  // of the plan entry
  uint64_t stamp = 0;
  bool operator==(const LaunchStamp&) const = default;
};
std::vector<std::byte> Encode(const LaunchStamp& stamp);
Result<LaunchStamp> DecodeLaunchStamp(std::span<const std::byte> bytes);

// A rank's view: one for all its sets.
class LaunchOrder {
 public:
  // The entry of this set has been planned. Returns the stamp to propose.
  uint64_t Propose(uint32_t incarnation, uint64_t sequence);
  // The members' decision; kProtocol if it was not proposed here, or is smaller than the proposal.
  Status Agree(uint32_t incarnation, LaunchStamp decision);
  // Whether it has a stamp, and so waits for its turn.
  bool Has(uint32_t incarnation, uint64_t sequence) const {
    return stamps_.contains({incarnation, sequence});
  }
  // Whether this is what this rank launches next.
  bool IsNext(uint32_t incarnation, uint64_t sequence) const;
  // All of this set, from the sequence `first` on, that is launched next: agreed on, and with
  // nothing else before it or in between.
  std::vector<uint64_t> NextOf(uint32_t incarnation, uint64_t first) const;
  // It has been launched, or will not be.
  void Remove(uint32_t incarnation, uint64_t sequence);
  // The set has ended.
  void RemoveSet(uint32_t incarnation);

 private:
  struct Place {
    uint64_t stamp;
    uint32_t incarnation;
    uint64_t sequence;
    bool is_agreed;
    auto Key() const { return std::tie(stamp, incarnation, sequence); }
    bool operator<(const Place& other) const { return Key() < other.Key(); }
  };
  using EntryId = std::pair<uint32_t, uint64_t>;

  uint64_t clock_ = 0;
  std::set<Place> places_;
  // Of what is in places_, and of what was removed before its decision came.
  std::map<EntryId, uint64_t> stamps_;
};

// The coordinator's part in one set: the largest proposal, once all members have made theirs.
class StampCollector {
 public:
  explicit StampCollector(size_t members) : last_(members) {}

  // The decision, if this was the last proposal for its entry. kProtocol if it can't be: members
  // propose in the order of the plan.
  Result<std::optional<LaunchStamp>> Add(uint32_t member, LaunchStamp proposal);

 private:
  struct Open {
    size_t proposals = 0;
    uint64_t stamp = 0;
  };
  std::vector<LaunchStamp> last_;  // by member
  std::map<uint64_t, Open> open_;  // by sequence
};

}  // namespace horoscale
