#include "runtime/set_registry.h"

#include <utility>

namespace horoscale {

std::shared_ptr<ProcessSet> SetRegistry::Find(uint32_t id) const {
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : found->second;
}

std::shared_ptr<ProcessSet> SetRegistry::Find(ChannelId channel) const {
  std::shared_ptr<ProcessSet> set = Find(channel.process_set);
  return set != nullptr && set->channel() == channel ? set : nullptr;
}

std::shared_ptr<ProcessSet> SetRegistry::Find(const std::vector<int>& ranks, Of of) const {
  for (const auto& [id, set] : sets_) {
    if (of == Of::kAllRanks && IsMadeByMembers(set->id())) break;  // they come last
    if (set->order() == ranks) return set;
  }
  return nullptr;
}

std::optional<int> SetRegistry::IdOf(const std::vector<int>& ranks) const {
  const auto set = Find(ranks, Of::kAnyone);
  return set == nullptr ? std::nullopt : std::optional(set->id());
}

void SetRegistry::Add(std::shared_ptr<ProcessSet> set) {
  const uint32_t id = set->channel().process_set;
  if (!IsMadeByMembers(set->id())) {
    ++next_incarnation_;
    if (free_ids_.empty()) {
      ++next_id_;
    } else {
      free_ids_.erase(free_ids_.begin());
    }
  }
  sets_[id] = std::move(set);
}

void SetRegistry::Remove(uint32_t id) {
  if (sets_.erase(id) > 0 && !IsMadeByMembers(static_cast<int>(id))) free_ids_.push_back(id);
}

bool SetRegistry::IsOver(ChannelId channel) const {
  return !IsToCome(channel) && Find(channel) == nullptr;
}

}  // namespace horoscale
