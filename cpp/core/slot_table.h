// The coordinator's half of the response cache: who gets which slot, and what a hit means.
//
// A retired slot keeps its content until every member has applied the entry that retired it: until
// then a report may be under way in which the slot still means the old content. A unit that changes
// its signature gets another slot for the same reason.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/name_table.h"
#include "core/request.h"

namespace horoscale {

using SharedSignature = std::shared_ptr<const Signature>;

class SlotTable {
 public:
  struct Content {
    NameId name = kNoName;  // the table holds a reference while the slot is live or retired
    SharedSignature signature;
  };

  explicit SlotTable(size_t capacity);

  // What a slot means to a member that has applied the entries up to `applied`; null: nothing.
  const Content* Meaning(uint32_t slot, uint64_t applied) const;

  // The live slot of a name, or of an unnamed signature (kNoName).
  std::optional<uint32_t> Find(NameId name, const Signature& signature) const;
  const Content& Get(uint32_t slot) const { return slots_[slot].content; }

  // Keeps the slot from being the next victim, and surely from being one of entry `sequence`.
  void Touch(uint32_t slot, uint64_t sequence);

  // Gives a slot in entry `sequence`, taking the least recently used one if the cache is full: that
  // goes to `retired`. Nothing if all slots are used by this entry or still wait for their release.
  std::optional<uint32_t> Assign(const Content& content, uint64_t sequence,
                                 std::vector<uint32_t>& retired, NameTable& names);

  void Retire(uint32_t slot, uint64_t sequence);

  // Makes the slots that were retired by entries up to `applied` free, where every member has
  // applied that.
  void Release(uint64_t applied, NameTable& names);
  bool HasRetired() const { return !retired_.empty(); }

 private:
  enum class State : uint8_t { kFree, kLive, kRetired };
  struct Slot {
    State state = State::kFree;
    uint64_t assigned_at = 0;
    uint64_t retired_at = 0;
    uint64_t used_at = 0;
    Content content;
    std::list<uint32_t>::iterator position;  // in by_use_, while live
  };

  std::optional<uint32_t> TakeFree();

  size_t capacity_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::list<uint32_t> by_use_;    // live slots, the least recently used one first
  std::deque<uint32_t> retired_;  // in the order of their entries
  std::vector<std::optional<uint32_t>> slot_of_name_;
  std::unordered_multimap<size_t, uint32_t> unnamed_;  // by hash of the signature
};

}  // namespace horoscale
