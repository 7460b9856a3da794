// The kernel families of Adasum's arithmetic: the same loops, compiled for one instruction set
// each. All give the same bits. Internal to collectives/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "collectives/adasum.h"

namespace horoscale {

struct AdasumKernels {
  using Products = void (*)(const std::byte* a, const std::byte* b, int64_t count,
                            AdasumLanes& lanes);
  using Weighted = void (*)(std::byte* a, const std::byte* b, int64_t count,
                            const AdasumWeights& weights);

  std::string_view name;
  Products products_of_float32;
  Products products_of_float64;
  Weighted weighted_float32;
  Weighted weighted_float64;
};

// The families that this processor can run, the fastest first; the last one is "plain".
std::span<const AdasumKernels* const> AvailableAdasumKernels();

extern const AdasumKernels kPlainAdasumKernels;
#if defined(__x86_64__)
extern const AdasumKernels kAvx2AdasumKernels;
extern const AdasumKernels kAvx512AdasumKernels;
#elif defined(__aarch64__)
extern const AdasumKernels kNeonAdasumKernels;
#endif

}  // namespace horoscale
