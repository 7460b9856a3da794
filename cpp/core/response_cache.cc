#include "core/response_cache.h"

#include <string>

namespace horoscale {

std::optional<uint32_t> ResponseCache::Find(NameId name, const Signature& signature) const {
  if (name == kNoName) return FindUnnamed(signature);
  const std::optional<uint32_t> slot = SlotOf(name);
  if (!slot || !(entries_[*slot]->signature == signature)) return std::nullopt;
  return slot;
}

std::optional<uint32_t> ResponseCache::SlotOf(NameId name) const {
  return name < slot_of_name_.size() ? slot_of_name_[name] : std::nullopt;
}

std::optional<uint32_t> ResponseCache::FindUnnamed(const Signature& signature) const {
  if (unnamed_.empty()) return std::nullopt;
  auto [slot, end] = unnamed_.equal_range(Hash(signature));
  for (; slot != end; ++slot) {
    if (entries_[slot->second]->signature == signature) return slot->second;
  }
  return std::nullopt;
}

const ResponseCache::Entry* ResponseCache::Get(uint32_t slot) const {
  return slot < entries_.size() && entries_[slot] ? &*entries_[slot] : nullptr;
}

Status ResponseCache::Assign(uint32_t slot, NameId name, const Signature& signature,
                             uint64_t sequence) {
  if (slot >= SlotSpace(capacity_) || size_ >= capacity_ || Get(slot) != nullptr) {
    return Status::Protocol("the plan assigns slot " + std::to_string(slot) +
                            ", which is in use or exceeds the cache's capacity of " +
                            std::to_string(capacity_));
  }
  if (name == kNoName) {
    if (FindUnnamed(signature)) {
      return Status::Protocol("the plan assigns two slots to a signature");
    }
    unnamed_.emplace(Hash(signature), slot);
  } else {
    if (name >= slot_of_name_.size()) slot_of_name_.resize(name + 1);
    if (slot_of_name_[name]) return Status::Protocol("the plan assigns two slots to a name");
    slot_of_name_[name] = slot;
  }
  if (slot >= entries_.size()) entries_.resize(slot + 1);
  entries_[slot] = Entry{name, signature, sequence, 0};
  ++size_;
  return Status::Ok();
}

Result<NameId> ResponseCache::Retire(uint32_t slot) {
  const Entry* entry = Get(slot);
  if (entry == nullptr) {
    return Status::Protocol("the plan retires slot " + std::to_string(slot) + ", which is empty");
  }
  const NameId name = entry->name;
  if (name != kNoName) {
    slot_of_name_[name].reset();
  } else {
    auto [found, end] = unnamed_.equal_range(Hash(entry->signature));
    while (found->second != slot) ++found;
    unnamed_.erase(found);
  }
  entries_[slot].reset();
  --size_;
  return name;
}

}  // namespace horoscale
