// The values of limits that a tuner can use: the configured ones, multiplied by powers of four.
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "core/limits.h"

namespace horoscale {

// In the order in which they are tuned.
enum class Knob : size_t { kCredit, kPartition, kFusion, kPace };
inline constexpr std::array kKnobs = {Knob::kCredit, Knob::kPartition, Knob::kFusion, Knob::kPace};
// Of one limit in one direction.
inline constexpr int kMostMoves = 3;

// The limits with one value moved up or down by a factor of four. Nothing if that has no effect or
// leaves the range of useful values.
std::optional<Limits> Moved(const Limits& from, Knob knob, bool upwards);

// All limits at most kMostMoves from these in each value. Sorted by the number of moves.
std::vector<Limits> LimitGrid(const Limits& from);

}  // namespace horoscale
