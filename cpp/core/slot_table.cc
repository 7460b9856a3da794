#include "core/slot_table.h"

#include "core/response_cache.h"

namespace horoscale {

SlotTable::SlotTable(size_t capacity) : capacity_(capacity) {}

const SlotTable::Content* SlotTable::Meaning(uint32_t number, uint64_t applied) const {
  if (number >= slots_.size()) return nullptr;
  const Slot& slot = slots_[number];
  if (slot.state == State::kFree || slot.assigned_at > applied) return nullptr;
  if (slot.state == State::kRetired && slot.retired_at <= applied) return nullptr;
  return &slot.content;
}

std::optional<uint32_t> SlotTable::Find(NameId name, const Signature& signature) const {
  if (name != kNoName) {
    return name < slot_of_name_.size() ? slot_of_name_[name] : std::nullopt;
  }
  if (unnamed_.empty()) return std::nullopt;
  auto [found, end] = unnamed_.equal_range(Hash(signature));
  for (; found != end; ++found) {
    if (*slots_[found->second].content.signature == signature) return found->second;
  }
  return std::nullopt;
}

void SlotTable::Touch(uint32_t number, uint64_t sequence) {
  Slot& slot = slots_[number];
  if (slot.state != State::kLive) return;
  slot.used_at = sequence;
  by_use_.splice(by_use_.end(), by_use_, slot.position);
}

std::optional<uint32_t> SlotTable::TakeFree() {
  if (!free_.empty()) {
    const uint32_t number = free_.back();
    free_.pop_back();
    return number;
  }
  if (slots_.size() >= SlotSpace(capacity_)) return std::nullopt;
  slots_.emplace_back();
  return static_cast<uint32_t>(slots_.size() - 1);
}

std::optional<uint32_t> SlotTable::Assign(const Content& content, uint64_t sequence,
                                          std::vector<uint32_t>& retired, NameTable& names) {
  const bool full = by_use_.size() >= capacity_;
  if (full && (by_use_.empty() || slots_[by_use_.front()].used_at == sequence)) return std::nullopt;
  const std::optional<uint32_t> number = TakeFree();
  if (!number) return std::nullopt;
  if (full) {
    retired.push_back(by_use_.front());
    Retire(by_use_.front(), sequence);
  }
  names.AddReference(content.name);
  Slot& slot = slots_[*number];
  slot.state = State::kLive;
  slot.assigned_at = slot.used_at = sequence;
  slot.content = content;
  slot.position = by_use_.insert(by_use_.end(), *number);
  if (content.name == kNoName) {
    unnamed_.emplace(Hash(*content.signature), *number);
  } else {
    if (content.name >= slot_of_name_.size()) slot_of_name_.resize(content.name + 1);
    slot_of_name_[content.name] = *number;
  }
  return number;
}

void SlotTable::Retire(uint32_t number, uint64_t sequence) {
  Slot& slot = slots_[number];
  slot.state = State::kRetired;
  slot.retired_at = sequence;
  by_use_.erase(slot.position);
  retired_.push_back(number);
  if (slot.content.name != kNoName) {
    slot_of_name_[slot.content.name].reset();
    return;
  }
  auto [found, end] = unnamed_.equal_range(Hash(*slot.content.signature));
  while (found->second != number) ++found;
  unnamed_.erase(found);
}

void SlotTable::Release(uint64_t applied, NameTable& names) {
  while (!retired_.empty() && slots_[retired_.front()].retired_at <= applied) {
    Slot& slot = slots_[retired_.front()];
    slot.state = State::kFree;
    names.Release(slot.content.name);
    slot.content = {};
    free_.push_back(retired_.front());
    retired_.pop_front();
  }
}

}  // namespace horoscale
