#include "collectives/pipeline.h"

#include <numeric>

namespace horoscale {

Pipeline::Pipeline(int64_t phases, int64_t chunks, uint32_t banks)
    : phases_(phases), rounds_(static_cast<size_t>(phases * chunks)) {
  int64_t distance = int64_t{banks} - 1;
  while (std::gcd(distance, phases) != 1) --distance;
  places_.reserve(rounds_.size());
  for (int64_t place = 0; places_.size() < rounds_.size(); ++place) {
    for (int64_t phase = 0; phase < phases; ++phase) {
      const int64_t first = place - phase * distance;
      const int64_t chunk = first / phases;
      if (first < 0 || first % phases != 0 || chunk >= chunks) continue;
      rounds_[static_cast<size_t>(chunk * phases + phase)] = rounds();
      places_.push_back({phase, chunk});
    }
  }
}

}  // namespace horoscale
