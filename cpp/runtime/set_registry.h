// SetRegistry: the process sets of the job, by id.
//
// All ranks execute registrations in one order, so that ids and incarnations agree without being
// sent. Called by the engine's owner.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/process_set.h"

namespace horoscale {

class SetRegistry {
 public:
  using Table = std::map<uint32_t, std::shared_ptr<ProcessSet>>;

  // Null: there is none.
  std::shared_ptr<ProcessSet> Find(uint32_t id) const;
  std::shared_ptr<ProcessSet> Find(ChannelId channel) const;
  // The set of exactly these ranks, or null.
  std::shared_ptr<ProcessSet> Find(const std::vector<int>& ranks) const;
  const Table& all() const { return sets_; }

  // What the next set that is added will be.
  ChannelId Next() const {
    return {free_ids_.empty() ? next_id_ : free_ids_.front(), next_incarnation_};
  }
  // Adds the next one.
  void Add(std::shared_ptr<ProcessSet> set);
  void Remove(uint32_t id);

  // Whether the set was here once and is no more, or is still to come. Incarnations are given in
  // order and never again.
  bool IsOver(ChannelId channel) const;
  bool IsToCome(ChannelId channel) const { return channel.incarnation >= next_incarnation_; }

 private:
  Table sets_;
  std::vector<uint32_t> free_ids_;  // oldest first
  uint32_t next_id_ = 0;
  uint32_t next_incarnation_ = 0;
};

}  // namespace horoscale
