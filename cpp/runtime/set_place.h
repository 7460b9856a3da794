// SetPlace: which process set it is, and which of its members this rank is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/channel_id.h"

namespace horoscale {

struct SetPlace {
  SetPlace(ChannelId of, std::vector<int> members, int this_rank)
      : channel(of), ranks(std::move(members)), rank(this_rank), self(IndexOf(this_rank)) {}

  const ChannelId channel;
  const std::vector<int> ranks;  // global, sorted
  const int rank;                // this one, also where it is no member
  const uint32_t self;           // its index in ranks, if it is one

  int id() const { return static_cast<int>(channel.process_set); }
  int coordinator() const { return ranks.front(); }
  bool IsMember() const { return Contains(rank); }
  bool Contains(int other) const { return std::binary_search(ranks.begin(), ranks.end(), other); }
  uint32_t IndexOf(int other) const {
    return static_cast<uint32_t>(std::lower_bound(ranks.begin(), ranks.end(), other) -
                                 ranks.begin());
  }
};

}  // namespace horoscale
