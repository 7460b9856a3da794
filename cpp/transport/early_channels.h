// EarlyChannels: how many channels each peer has opened that this rank has not.
#pragma once

#include <cstddef>
#include <map>

#include "base/status.h"

namespace horoscale {

class EarlyChannels {
 public:
  // The peer has opened one more. kProtocol if these are too many.
  Status Add(int rank);
  // One of them is open here too, or is over.
  void Remove(int rank) { --of_rank_[rank]; }
  void OnRankLost(int rank) { of_rank_.erase(rank); }

 private:
  std::map<int, size_t> of_rank_;
};

}  // namespace horoscale
