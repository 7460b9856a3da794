// The order of the rounds of an operation whose chunks pass through several phases, each of which
// is a round.
//
// A phase of a chunk reads what its previous phase has brought, so other chunks' rounds come in
// between, as many as the banks allow: phase p of chunk c stands at K c + D p, where K is the
// number of phases and D, the distance between two phases of a chunk, is below the number of banks
// (the chunk must be read before its bank is written again) and has no factor in common with K (so
// that no two rounds stand at one place). Rounds are numbered as they stand; places that stay empty
// at the ends don't count. With 3 phases and 4 banks:
//
//     place    0   1   2   3   4   5   6   7   8   9  10
//     phase 0  c0          c1          c2
//     phase 1          c0          c1          c2
//     phase 2                  c0          c1          c2
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace horoscale {

class Pipeline {
 public:
  struct Place {
    int64_t phase;
    int64_t chunk;
  };

  Pipeline() = default;
  Pipeline(int64_t phases, int64_t chunks, uint32_t banks);

  int64_t rounds() const { return static_cast<int64_t>(places_.size()); }
  Place At(int64_t round) const { return places_[static_cast<size_t>(round)]; }
  int64_t RoundOf(int64_t phase, int64_t chunk) const {
    return rounds_[static_cast<size_t>(chunk * phases_ + phase)];
  }

 private:
  int64_t phases_ = 0;
  std::vector<Place> places_;    // by round
  std::vector<int64_t> rounds_;  // by chunk and phase
};

}  // namespace horoscale
