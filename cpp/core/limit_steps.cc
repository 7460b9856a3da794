#include "core/limit_steps.h"

#include <algorithm>
#include <utility>

namespace horoscale {
namespace {

constexpr int64_t kFactor = 4;

struct Range {
  double least;
  double most;
};
// By Knob. Smaller values cost more than overtaking gains; larger ones are never reached.
constexpr Range kRanges[] = {
    {1 << 20, 1 << 30}, {64 << 10, 1 << 28}, {256 << 10, 1 << 29}, {0.002, 1.0}};

template <typename Value>
bool Move(Value& value, Value from, const Range& range, bool upwards) {
  if (value <= 0) return false;
  const Value moved = upwards ? from * kFactor : from / kFactor;
  const auto number = static_cast<double>(moved);
  if (number < range.least || number > range.most) return false;
  value = moved;
  return true;
}

}  // namespace

std::optional<Limits> Moved(const Limits& from, Knob knob, bool upwards) {
  Limits next = from;
  const Range& range = kRanges[static_cast<size_t>(knob)];
  bool moved = false;
  switch (knob) {
    case Knob::kCredit:
      moved = Move(next.credit_bytes, next.credit_bytes, range, upwards);
      break;
    case Knob::kPartition:
      moved = Move(next.partition_bytes, next.partition_bytes, range, upwards);
      break;
    case Knob::kFusion: {
      // Buckets are at most half the credit (core/fusion_planner.h).
      const int64_t reached = std::min(next.fusion_threshold_bytes, next.credit_bytes / 2);
      if (upwards && reached < next.fusion_threshold_bytes) break;
      moved = Move(next.fusion_threshold_bytes, reached, range, upwards);
      break;
    }
    case Knob::kPace:
      moved = Move(next.pace_seconds, next.pace_seconds, range, upwards);
      break;
  }
  if (!moved) return std::nullopt;
  return next;
}

std::vector<Limits> LimitGrid(const Limits& from) {
  std::vector<std::pair<int, Limits>> grid = {{0, from}};
  for (const Knob knob : kKnobs) {
    const size_t before = grid.size();
    for (size_t i = 0; i < before; ++i) {
      for (const bool upwards : {false, true}) {
        std::optional<Limits> next = grid[i].second;
        for (int moves = 1; moves <= kMostMoves; ++moves) {
          next = Moved(*next, knob, upwards);
          if (!next) break;
          grid.emplace_back(grid[i].first + moves, *next);
        }
      }
    }
  }
  std::stable_sort(grid.begin(), grid.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Limits> result;
  for (const auto& [_, limits] : grid) result.push_back(limits);
  return result;
}

}  // namespace horoscale
