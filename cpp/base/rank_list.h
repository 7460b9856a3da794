// Ranks in a sentence.
#pragma once

#include <span>
#include <string>

namespace horoscale {

// "rank 3", "ranks 0, 2-5 and 9"; "no rank" of none. Ascending ones; what is too long ends in "…".
std::string RankList(std::span<const int> ranks);

}  // namespace horoscale
