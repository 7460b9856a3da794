// SetRegistry: the process sets of the job, by ID.
//
// All ranks execute registrations in the same order, so that IDs and incarnations agree without
// communication. Sets that their members create have separate IDs, which their lowest member
// assigns. Called by the engine's owner.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/process_set_ids.h"
#include "core/set_creations.h"
#include "runtime/process_set.h"

namespace horoscale {

class SetRegistry final : public SetCreations::Registered {
 public:
  using Table = std::map<uint32_t, std::shared_ptr<ProcessSet>>;

  // Null: there is none.
  std::shared_ptr<ProcessSet> Find(uint32_t id) const;
  std::shared_ptr<ProcessSet> Find(ChannelId channel) const;
  // The set of exactly these ranks in this order, or null: among sets that all ranks have created,
  // or among all sets.
  enum class Of { kAllRanks, kAnyone };
  std::shared_ptr<ProcessSet> Find(const std::vector<int>& ranks, Of of) const;
  const Table& all() const { return sets_; }
  // SetCreations::Registered
  std::optional<int> IdOf(const std::vector<int>& ranks) const override;
  bool HasId(int id) const override { return sets_.contains(static_cast<uint32_t>(id)); }

  // The ID and incarnation of the next added set.
  ChannelId Next() const {
    return {free_ids_.empty() ? next_id_ : free_ids_.front(), next_incarnation_};
  }
  // Adds the next set, or one that its members have created.
  void Add(std::shared_ptr<ProcessSet> set);
  void Remove(uint32_t id);

  // Whether the set was removed, as opposed to not being registered yet. Incarnations are assigned
  // in order and never reused. Sets that their members create are registered by all of them before
  // they are used.
  bool IsOver(ChannelId channel) const;
  bool IsToCome(ChannelId channel) const {
    return channel.incarnation < kIncarnationByMembers && channel.incarnation >= next_incarnation_;
  }

 private:
  Table sets_;
  std::vector<uint32_t> free_ids_;  // oldest first
  uint32_t next_id_ = 0;
  uint32_t next_incarnation_ = 0;
};

}  // namespace horoscale
