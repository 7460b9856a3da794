// SlotTable: the coordinator's part of the response cache: assigns slots, and resolves hits.
//
// A retired slot keeps its content until every member has applied the entry that retired it,
// because reports in flight may still refer to the old content. For the same reason, a unit that
// changes its signature gets another slot.
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

  // The content of a slot for a member that has applied the entries up to `applied`; null if it is
  // empty.
  const Content* Meaning(uint32_t slot, uint64_t applied) const;

  // The live slot of a name, or of an unnamed signature (kNoName).
  std::optional<uint32_t> Find(NameId name, const Signature& signature) const;
  const Content& Get(uint32_t slot) const { return slots_[slot].content; }

  // Marks the slot as recently used, and prevents entry `sequence` from retiring it.
  void Touch(uint32_t slot, uint64_t sequence);

  // Assigns a slot in entry `sequence`. If the cache is full, the least recently used slot is
  // retired and added to `retired`. Returns nothing if this entry uses all slots or they still wait
  // for their release.
  std::optional<uint32_t> Assign(const Content& content, uint64_t sequence,
                                 std::vector<uint32_t>& retired, NameTable& names);

  void Retire(uint32_t slot, uint64_t sequence);

  // Frees the slots that were retired by entries up to `applied`, which every member must have
  // applied.
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
