#include "collectives/adasum_stages.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "collectives/adasum.h"
#include "collectives/collective.h"
#include "collectives/round_loop.h"

namespace horoscale {

std::optional<uint32_t> AdasumGroup(std::span<const int> ranks, int start_level) {
  std::optional<uint32_t> group;
  for (size_t first = 0; first < ranks.size();) {
    size_t end = first;
    while (end < ranks.size() && ranks[end] / start_level == ranks[first] / start_level) ++end;
    const auto count = static_cast<uint32_t>(end - first);
    if (group.value_or(count) != count) return std::nullopt;
    group = count;
    first = end;
  }
  return group;
}

AdasumStages::AdasumStages(uint32_t members, uint32_t group)
    : group_(group), pairing_(std::bit_floor(members / group)), rest_(members / group - pairing_) {
  if (group_ > 1) stages_.push_back({Kind::kAverage, 0});
  if (rest_ > 0) stages_.push_back({Kind::kFold, pairing_});
  for (uint32_t d = 1; d < pairing_; d *= 2) stages_.push_back({Kind::kPair, d});
}

std::vector<uint32_t> AdasumStages::Cluster(size_t stage, uint32_t member) const {
  const auto [kind, distance] = stages_[stage];
  const uint32_t group = member / group_;
  if (kind == Kind::kAverage) {
    std::vector<uint32_t> all(group_);
    std::iota(all.begin(), all.end(), group * group_);
    return all;
  }
  const bool takes_part =
      kind == Kind::kPair ? group < pairing_ : group < rest_ || group >= pairing_;
  if (!takes_part) return {};
  const uint32_t other = kind == Kind::kPair ? group ^ distance
                         : group < pairing_  ? group + distance
                                             : group - distance;
  const uint32_t lower = std::min(group, other) * group_ + member % group_;
  return {lower, lower + distance * group_};
}

std::vector<uint32_t> AdasumStages::Holders(size_t stage, uint32_t member) const {
  const auto [kind, distance] = stages_[stage];
  const uint32_t group = member / group_;
  if (kind == Kind::kAverage || group >= (kind == Kind::kFold ? rest_ : pairing_)) return {};
  const uint32_t groups = kind == Kind::kFold ? 1 : 2 * distance;
  std::vector<uint32_t> all(groups * group_);
  std::iota(all.begin(), all.end(), group / groups * groups * group_);
  return all;
}

ElementRange AdasumStages::Share(size_t stage, ElementRange range, uint32_t index) const {
  if (kind(stage) == Kind::kFold) return index == 0 ? range : ElementRange{range.first, 0};
  const RowRange lines = RowsOf(DivideUp(range.count, kAdasumLanes), ClusterSize(stage), index);
  const int64_t skipped = std::min(lines.first * kAdasumLanes, range.count);
  return {range.first + skipped, std::min(lines.count * kAdasumLanes, range.count - skipped)};
}

}  // namespace horoscale
