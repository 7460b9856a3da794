// ResponseCache: a member's part of the response cache: the content of each slot of its set.
//
// A slot contains a named unit (name and signature), or only a signature (for unnamed units). Only
// plan entries, which all members apply in the same order, assign and retire slots, so the caches
// can't diverge.
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

// The number of slots of a set with this capacity: twice the capacity, so that slots can be
// assigned while retired ones wait until no report can refer to them any more.
constexpr size_t SlotSpace(size_t capacity) { return 2 * capacity; }

class ResponseCache {
 public:
  struct Entry {
    NameId name = kNoName;
    Signature signature;
    uint64_t since = 0;  // the plan entry that assigned the slot
    uint64_t uses = 0;   // uses since then: see CountUse()
  };

  explicit ResponseCache(size_t capacity) : capacity_(capacity) {}

  // The slot of a unit, if a slot has exactly this content. kNoName finds unnamed units.
  std::optional<uint32_t> Find(NameId name, const Signature& signature) const;
  // Null if the slot is empty.
  const Entry* Get(uint32_t slot) const;

  // The slot of a name, whatever its signature.
  std::optional<uint32_t> SlotOf(NameId name) const;

  // Counts a use of a named slot: it was executed partly or completely, has failed, or has ended
  // without a plan. A rank's next call with this name is the same operation on all members, and
  // finds the same count on all of them.
  void CountUse(uint32_t slot) { ++entries_[slot]->uses; }

  // Assigns a slot in plan entry `sequence`. kProtocol if the slot is out of range or in use, or if
  // another slot has the same content.
  Status Assign(uint32_t slot, NameId name, const Signature& signature, uint64_t sequence);
  // Retires a slot and returns its name; kProtocol if the slot is empty.
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
