// A member's half of the response cache: what each slot of its set stands for.
//
// A slot stands for a named unit (name and signature) or for a signature alone (unnamed units).
// Slots are given and taken only by plan entries, which all members apply in one order: they can't
// diverge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "core/name_table.h"
#include "core/request.h"

namespace horoscale {

// A set with this capacity numbers its slots below this: as many again as may be live, so that
// slots can be given while retired ones wait until no report can mean them any more.
constexpr size_t SlotSpace(size_t capacity) { return 2 * capacity; }

class ResponseCache {
 public:
  struct Entry {
    NameId name = kNoName;
    Signature signature;
    uint64_t since = 0;  // the plan entry that gave the slot
    uint64_t uses = 0;   // since then: see CountUse()
  };

  explicit ResponseCache(size_t capacity) : capacity_(capacity) {}

  // The slot of a unit, if a slot stands for exactly that. kNoName asks for unnamed units.
  std::optional<uint32_t> Find(NameId name, const Signature& signature) const;
  // Null where the slot stands for nothing.
  const Entry* Get(uint32_t slot) const;

  // The slot of a name, whatever its signature.
  std::optional<uint32_t> SlotOf(NameId name) const;

  // Something named by the slot was executed in part or as a whole, has failed, or has ended
  // without a plan. What a rank calls next by this name is the same operation on all members, and
  // finds the same count on all of them.
  void CountUse(uint32_t slot) { ++entries_[slot]->uses; }

  // In plan entry `sequence`. kProtocol if the slot is out of range or taken, or if another one
  // stands for the same.
  Status Assign(uint32_t slot, NameId name, const Signature& signature, uint64_t sequence);
  // The name whose slot it was; kProtocol if the slot stands for nothing.
  Result<NameId> Retire(uint32_t slot);

  size_t size() const { return size_; }

 private:
  std::optional<uint32_t> FindUnnamed(const Signature& signature) const;

  size_t capacity_;
  size_t size_ = 0;
  std::vector<std::optional<Entry>> entries_;
  std::vector<std::optional<uint32_t>> slot_of_name_;
  std::unordered_multimap<size_t, uint32_t> unnamed_;  // by hash of the signature
};

}  // namespace horoscale
