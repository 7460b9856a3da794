// The kernel families of Fold: the same few loops, compiled for one instruction set each.
//
// A reduction is a sequence of these loops over blocks that stay in the L1 cache, so that each loop
// is simple enough for the compiler to vectorise and memory is touched once. Internal to
// collectives/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/types.h"
#include "collectives/fold.h"

namespace horoscale {

struct FoldKernels {
  // dst[i] = a[i] op b[i]; dst may be a or b.
  using Combine = void (*)(std::byte* dst, const std::byte* a, const std::byte* b, int64_t count);
  using Divide = void (*)(std::byte* values, int64_t count, int64_t divisor);
  using Scale = void (*)(std::byte* values, int64_t count, double factor);
  // From one type to another.
  using Convert = void (*)(std::byte* dst, const std::byte* src, int64_t count);

  // What one type needs. Half types have the float32 loops, and conversions around them.
  struct Row {
    Combine combine[kNumReduceOps];  // null where the reduction is not defined
    Divide divide;
    Scale scale;
    Convert widen;  // to float32; null where the type accumulates in itself
    Convert narrow;
  };

  std::string_view name;
  Row rows[kNumDataTypes];
  Convert float64_from_float32;
  Convert float32_from_float64;
};

// The families that this processor can run, the fastest first; the last one is "plain".
std::span<const FoldKernels* const> AvailableFoldKernels();

// Fold() with a family of the caller's choice.
void FoldWith(const FoldKernels& kernels, const Reduction& reduction, std::byte* dst,
              std::span<const std::byte* const> srcs, int64_t count);

extern const FoldKernels kPlainFoldKernels;
#if defined(__x86_64__)
extern const FoldKernels kAvx2FoldKernels;
extern const FoldKernels kAvx512FoldKernels;
#elif defined(__aarch64__)
extern const FoldKernels kNeonFoldKernels;
#endif

}  // namespace horoscale
