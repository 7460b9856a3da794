// Which units are ready on every member of a set? Collects what the members said about each key.
//
// A unit is ready once every member has reported it or has joined. It stays known until it is
// forgotten, so that a member that reports it twice is found out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "core/name_table.h"
#include "core/slot_table.h"

namespace horoscale {

using UnitId = uint32_t;  // given again after Forget()

// The name, or for unnamed units kNoName and their position among the unnamed calls.
struct UnitKey {
  NameId name = kNoName;
  uint64_t index = 0;
};

class Negotiator {
 public:
  struct Unit {
    UnitKey key;
    std::vector<SharedSignature>
        variants;  // what was said, in order of appearance: one unless mismatched
    std::vector<uint32_t> variant_of;  // by member; kSilent
    uint32_t awaited = 0;              // members that have neither reported nor joined
    double since = 0;                  // when the first member reported it; the coordinator's
    int priority = 0;                  // by the coordinator's own member
    int64_t own_bytes = 0;             // as well; see Request
    std::optional<Encoding> chosen;    // of an adaptive one that is ready
  };
  static constexpr uint32_t kSilent = UINT32_MAX;

  struct Outcome {
    UnitId unit = 0;
    bool is_new = false;
    bool is_ready = false;
  };

  explicit Negotiator(uint32_t size) : joined_(size), last_index_(size) {}

  // These members say the same. `shared` is given where they referred to a cached signature, and is
  // compared by address first. kProtocol if one has joined or has reported the key before.
  Result<Outcome> Report(std::span<const uint32_t> members, const UnitKey& key,
                         const Signature& signature, const SharedSignature& shared);

  // Whether some member has reported it.
  bool Knows(const UnitKey& key) const;

  // The member has made `count` more unnamed calls. Returns the index of the last one before them.
  uint64_t AdvanceIndex(uint32_t member, size_t count);

  // The member counts as ready for everything from now on. Returns the units that this makes ready,
  // in no order of meaning. kProtocol if it has joined already.
  Result<std::vector<UnitId>> Join(uint32_t member);
  bool HasJoined(uint32_t member) const { return joined_[member]; }
  bool SomeJoined() const { return num_joined_ > 0; }
  bool AllJoined() const { return num_joined_ == joined_.size(); }
  // Everybody is active again and counts unnamed calls from 1.
  void Reactivate();

  Unit& Get(UnitId unit) { return units_[unit]; }
  const Unit& Get(UnitId unit) const { return units_[unit]; }
  size_t num_units() const { return units_.size() - free_.size(); }
  // Units that some member is awaited for, at most `limit`.
  std::vector<UnitId> Waiting(size_t limit) const;
  // Members that take no part in a ready unit, ascending.
  std::vector<uint32_t> Absent(UnitId unit) const;
  void Forget(UnitId unit);

 private:
  UnitId FindOrAdd(const UnitKey& key, bool* is_new);

  std::vector<char> joined_;
  uint32_t num_joined_ = 0;
  std::vector<uint64_t> last_index_;
  std::vector<Unit> units_;
  std::vector<char> in_use_;
  std::vector<UnitId> free_;
  std::vector<UnitId> unit_of_name_;  // by NameId; kSilent
  std::unordered_map<uint64_t, UnitId> unit_of_index_;
};

}  // namespace horoscale
