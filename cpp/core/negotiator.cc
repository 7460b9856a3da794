#include "core/negotiator.h"

#include <algorithm>
#include <string>

namespace horoscale {
namespace {

// The index of a signature among the reported ones; added if it is new.
uint32_t VariantOf(std::vector<SharedSignature>& variants, const Signature& signature,
                   const SharedSignature& shared) {
  for (uint32_t i = 0; i < variants.size(); ++i) {
    if (variants[i] == shared || *variants[i] == signature) return i;
  }
  variants.push_back(shared ? shared : std::make_shared<const Signature>(signature));
  return static_cast<uint32_t>(variants.size() - 1);
}

}  // namespace

bool Negotiator::Knows(const UnitKey& key) const {
  if (key.name == kNoName) return unit_of_index_.contains(key.index);
  return key.name < unit_of_name_.size() && unit_of_name_[key.name] != kSilent;
}

UnitId Negotiator::FindOrAdd(const UnitKey& key, bool* is_new) {
  UnitId* place;
  if (key.name == kNoName) {
    place = &unit_of_index_.try_emplace(key.index, kSilent).first->second;
  } else {
    if (key.name >= unit_of_name_.size()) unit_of_name_.resize(key.name + 1, kSilent);
    place = &unit_of_name_[key.name];
  }
  *is_new = *place == kSilent;
  if (!*is_new) return *place;
  if (free_.empty()) {
    free_.push_back(static_cast<UnitId>(units_.size()));
    units_.emplace_back();
    in_use_.push_back(false);
  }
  *place = free_.back();
  free_.pop_back();
  in_use_[*place] = true;
  Unit& unit = units_[*place];
  unit.key = key;
  unit.variants.clear();
  unit.variant_of.assign(joined_.size(), kSilent);
  unit.awaited = static_cast<uint32_t>(joined_.size()) - num_joined_;
  unit.priority = 0;
  unit.own_bytes = 0;
  return *place;
}

Result<Negotiator::Outcome> Negotiator::Report(std::span<const uint32_t> members,
                                               const UnitKey& key, const Signature& signature,
                                               const SharedSignature& shared) {
  for (const uint32_t member : SomeJoined() ? members : std::span<const uint32_t>()) {
    if (joined_[member]) return Status::Protocol("it has called join(), but reports an operation");
  }
  Outcome outcome;
  outcome.unit = FindOrAdd(key, &outcome.is_new);
  Unit& unit = units_[outcome.unit];
  const uint32_t variant = VariantOf(unit.variants, signature, shared);
  for (const uint32_t member : members) {
    if (unit.variant_of[member] != kSilent) {
      return Status::Protocol("it reports an operation that is already pending");
    }
    unit.variant_of[member] = variant;
  }
  unit.awaited -= static_cast<uint32_t>(members.size());
  outcome.is_ready = unit.awaited == 0;
  return outcome;
}

uint64_t Negotiator::AdvanceIndex(uint32_t member, size_t count) {
  const uint64_t before = last_index_[member];
  last_index_[member] += count;
  return before;
}

Result<std::vector<UnitId>> Negotiator::Join(uint32_t member) {
  if (joined_[member]) return Status::Protocol("it joins twice");
  joined_[member] = true;
  ++num_joined_;
  std::vector<UnitId> ready;
  for (UnitId id = 0; id < units_.size(); ++id) {
    Unit& unit = units_[id];
    if (!in_use_[id] || unit.variant_of[member] != kSilent) continue;
    if (--unit.awaited == 0) ready.push_back(id);
  }
  return ready;
}

void Negotiator::Reactivate() {
  std::fill(joined_.begin(), joined_.end(), false);
  std::fill(last_index_.begin(), last_index_.end(), 0);
  num_joined_ = 0;
}

std::vector<UnitId> Negotiator::Waiting(size_t limit) const {
  std::vector<UnitId> waiting;
  for (UnitId id = 0; id < units_.size() && waiting.size() < limit; ++id) {
    if (in_use_[id] && units_[id].awaited > 0) waiting.push_back(id);
  }
  return waiting;
}

std::vector<uint32_t> Negotiator::Absent(UnitId unit) const {
  std::vector<uint32_t> absent;
  if (!SomeJoined()) return absent;
  const std::vector<uint32_t>& variant_of = units_[unit].variant_of;
  for (uint32_t member = 0; member < variant_of.size(); ++member) {
    if (variant_of[member] == kSilent) absent.push_back(member);
  }
  return absent;
}

void Negotiator::Forget(UnitId id) {
  const UnitKey& key = units_[id].key;
  if (key.name == kNoName) {
    unit_of_index_.erase(key.index);
  } else {
    unit_of_name_[key.name] = kSilent;
  }
  in_use_[id] = false;
  free_.push_back(id);
}

}  // namespace horoscale
