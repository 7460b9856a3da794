// LaunchOrder: the order in which a rank launches device operations of overlapping process sets.
//
// Kernels of two NCCL communicators on one device can block each other, so all ranks must launch
// them in the same order. No rank can decide this order for all sets, because its failure would
// affect sets that it does not belong to. Therefore the members of each operation agree on a stamp:
//
//   1. Each member proposes a stamp for the planned operation that is larger than all stamps it
//   knows.
//   2. The set's coordinator sends the largest proposal, which becomes the stamp, to all members.
//   3. A member launches the operation with the smallest stamp, once that stamp is decided.
//      Undecided operations can't get a stamp smaller than their proposal, so no operation
//      overtakes.
//
// Stamps are totally ordered (equal ones by the set's incarnation), and follow the plan within each
// set. Only engines wait, never a call in user code. A message between two members is an operation
// of these two, planned when it has matched its receive. Pure.
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

// Upper limit, because a faulty stamp that overflows the clock would stop all sets.
inline constexpr uint64_t kMaxLaunchStamp = UINT64_MAX / 2;

// The message: a member's proposal to its coordinator, or the coordinator's decision to all.
struct LaunchStamp {
  uint64_t sequence = 0;  // of the plan entry
  uint64_t stamp = 0;
  bool operator==(const LaunchStamp&) const = default;
};
std::vector<std::byte> Encode(const LaunchStamp& stamp);
Result<LaunchStamp> DecodeLaunchStamp(std::span<const std::byte> bytes);

// A rank's view of the order; one for all its sets.
class LaunchOrder {
 public:
  // The entry of this set has been planned. Returns the stamp to propose.
  uint64_t Propose(uint32_t incarnation, uint64_t sequence);
  // The members' decision; kProtocol if it was not proposed here, or is smaller than the proposal.
  Status Agree(uint32_t incarnation, LaunchStamp decision);
  // Whether the entry has a stamp and has not been removed.
  bool Has(uint32_t incarnation, uint64_t sequence) const {
    return stamps_.contains({incarnation, sequence});
  }
  // Whether this entry is the next that this rank launches.
  bool IsNext(uint32_t incarnation, uint64_t sequence) const;
  // All entries of this set, from the sequence `first` on, that are launched next: decided, and
  // with no other entries before or between them.
  std::vector<uint64_t> NextOf(uint32_t incarnation, uint64_t first) const;
  // The entry has been launched, or will not be.
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
  // For entries in places_, and for entries that were removed before their decision.
  std::map<EntryId, uint64_t> stamps_;
};

// The coordinator's part for one set: determines the largest proposal when all members have made
// theirs.
class StampCollector {
 public:
  explicit StampCollector(size_t members) : last_(members) {}

  // Returns the decision if this was the last proposal for its entry. kProtocol if it is out of
  // order: members propose in plan order.
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
