// EarlyChannels: counts the channels that each peer has opened before this rank.
#pragma once

#include <cstddef>
#include <map>

#include "base/status.h"

namespace horoscale {

class EarlyChannels {
 public:
  // The peer has opened another one. kProtocol if there are too many.
  Status Add(int rank);
  // One of them was opened or removed on this rank.
  void Remove(int rank) { --of_rank_[rank]; }
  void OnRankLost(int rank) { of_rank_.erase(rank); }

 private:
  std::map<int, size_t> of_rank_;
};

}  // namespace horoscale
