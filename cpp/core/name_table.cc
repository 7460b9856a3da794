#include "core/name_table.h"

namespace horoscale {

NameId NameTable::Acquire(std::string_view name) {
  auto found = ids_.find(name);
  if (found == ids_.end()) {
    NameId id = static_cast<NameId>(entries_.size());
    if (free_.empty()) {
      entries_.emplace_back();
    } else {
      id = free_.back();
      free_.pop_back();
    }
    found = ids_.emplace(std::string(name), id).first;
    entries_[id].text = &found->first;
  }
  ++entries_[found->second].references;
  return found->second;
}

NameId NameTable::Find(std::string_view name) const {
  auto found = ids_.find(name);
  return found == ids_.end() ? kNoName : found->second;
}

void NameTable::AddReference(NameId id) {
  if (id != kNoName) ++entries_[id].references;
}

void NameTable::Release(NameId id) {
  if (id == kNoName || --entries_[id].references > 0) return;
  ids_.erase(ids_.find(*entries_[id].text));
  entries_[id].text = nullptr;
  free_.push_back(id);
}

std::string_view NameTable::Text(NameId id) const {
  return id == kNoName ? std::string_view() : std::string_view(*entries_[id].text);
}

}  // namespace horoscale
