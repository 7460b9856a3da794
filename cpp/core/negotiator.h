// Negotiator: determines which units are ready on every member of a set, from the members' reports.
//
// A unit is ready when every member has reported it or has joined. It is kept until Forget(), so
// that duplicate reports are detected.
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

using UnitId = uint32_t;  // reused after Forget()

// The name; for unnamed units kNoName and their index among the unnamed calls.
struct UnitKey {
  NameId name = kNoName;
  uint64_t index = 0;
};

class Negotiator {
 public:
  struct Unit {
    UnitKey key;
    std::vector<SharedSignature>
        variants;  // the reported signatures, in order of arrival; one unless mismatched
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

  // Takes the equal reports of these members. `shared` is set if they referred to a cached
  // signature; it is compared by address first. kProtocol if a member has joined or has already
  // reported the key.
  Result<Outcome> Report(std::span<const uint32_t> members, const UnitKey& key,
                         const Signature& signature, const SharedSignature& shared);

  // Whether any member has reported it.
  bool Knows(const UnitKey& key) const;

  // The member has made `count` more unnamed calls. Returns the index of the last call before them.
  uint64_t AdvanceIndex(uint32_t member, size_t count);

  // The member has joined and counts as ready for everything from now on. Returns the units that
  // this makes ready, in unspecified order. kProtocol if it has already joined.
  Result<std::vector<UnitId>> Join(uint32_t member);
  bool HasJoined(uint32_t member) const { return joined_[member]; }
  bool SomeJoined() const { return num_joined_ > 0; }
  bool AllJoined() const { return num_joined_ == joined_.size(); }
  // Makes all members active again and restarts the count of unnamed calls at 1.
  void Reactivate();

  Unit& Get(UnitId unit) { return units_[unit]; }
  const Unit& Get(UnitId unit) const { return units_[unit]; }
  size_t num_units() const { return units_.size() - free_.size(); }
  // Units that wait for members, at most `limit`.
  std::vector<UnitId> Waiting(size_t limit) const;
  // Members that do not participate in a ready unit, ascending.
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
