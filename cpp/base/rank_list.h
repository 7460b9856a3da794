// Formats ranks for messages.
#pragma once

#include <span>
#include <string>

namespace horoscale {

// "rank 3", "ranks 0, 2-5 and 9", or "no rank". The ranks must be ascending; long lists are
// truncated with "…".
std::string RankList(std::span<const int> ranks);

}  // namespace horoscale
