#include "base/rank_list.h"

#include <cstddef>
#include <vector>

namespace horoscale {
namespace {

constexpr size_t kMaxListed = 32;

// Returns single numbers, and ranges of at least three: "3 and 4" is easier to read than "3-4".
std::vector<std::string> Ranges(std::span<const int> ranks) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i == 2) end = i + 1;
    ranges.push_back(std::to_string(ranks[i]));
    if (end - i > 2) ranges.back() += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return ranges;
}

}  // namespace

std::string RankList(std::span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  const std::vector<std::string> ranges = Ranges(ranks);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i == kMaxListed) return text + ", …";
    if (i > 0) text += i + 1 == ranges.size() ? " and " : ", ";
    text += ranges[i];
  }
  return text;
}

}  // namespace horoscale
