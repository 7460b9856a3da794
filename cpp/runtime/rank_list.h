// Ranks in a sentence: "rank 3", "ranks 0, 1 and 5".
#pragma once

#include <string>
#include <vector>

namespace horoscale {

inline std::string RankList(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return ranks.empty() ? "no rank" : text;
}

}  // namespace horoscale
