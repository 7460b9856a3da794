// SetPlace: identifies a process set, and this rank's place in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/channel_id.h"

namespace horoscale {

struct SetPlace {
  SetPlace(ChannelId of, std::vector<int> members, int this_rank)
      : channel(of),
        order(std::move(members)),
        ranks(Sorted(order)),
        positions(PositionsIn(order, ranks)),
        rank(this_rank),
        self(IndexOf(this_rank)) {}

  const ChannelId channel;
  const std::vector<int> order;           // global ranks in the users' order
  const std::vector<int> ranks;           // the same, sorted; used everywhere else
  const std::vector<uint32_t> positions;  // index in `order` by index in `ranks`; empty: identical
  const int rank;                         // this rank, even if it is not a member
  const uint32_t self;                    // its index in ranks, if it is one

  int id() const { return static_cast<int>(channel.process_set); }
  int coordinator() const { return ranks.front(); }
  bool IsMember() const { return Contains(rank); }
  bool Contains(int other) const { return std::binary_search(ranks.begin(), ranks.end(), other); }
  uint32_t IndexOf(int other) const {
    return static_cast<uint32_t>(std::lower_bound(ranks.begin(), ranks.end(), other) -
                                 ranks.begin());
  }

 private:
  static std::vector<int> Sorted(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  static std::vector<uint32_t> PositionsIn(const std::vector<int>& order,
                                           const std::vector<int>& ranks) {
    std::vector<uint32_t> positions;
    if (order == ranks) return positions;
    for (const int rank : ranks) {
      const auto at = std::find(order.begin(), order.end(), rank);
      positions.push_back(static_cast<uint32_t>(at - order.begin()));
    }
    return positions;
  }
};

}  // namespace horoscale
