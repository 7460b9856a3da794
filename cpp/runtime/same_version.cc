#include "runtime/same_version.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/rank_list.h"

namespace horoscale {
namespace {

Status Differ(const std::vector<int>& ranks, std::string_view version, std::string_view of_rank_0) {
  return Status(
      StatusCode::kProtocol,
      RankList(ranks) + (ranks.size() == 1 ? " speaks" : " speak") + " version " +
          std::string(version) + " of horoscale's protocol between ranks, rank 0 version " +
          std::string(of_rank_0) + ": install the same version of horoscale for all ranks",
      {ranks, -1, ""});
}

}  // namespace

Status CheckSameVersion(std::span<const uint32_t> by_rank) {
  const auto other = std::find_if(by_rank.begin(), by_rank.end(),
                                  [&](uint32_t version) { return version != by_rank[0]; });
  if (other == by_rank.end()) return {};
  std::vector<int> ranks;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == *other) ranks.push_back(static_cast<int>(rank));
  }
  return Differ(ranks, std::to_string(*other), std::to_string(by_rank[0]));
}

}  // namespace horoscale
