// The family for AVX2 with F16C.
#if defined(__x86_64__)
#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "collectives/float16.h"
#include "collectives/fold_kernels.h"
#include "collectives/fold_target.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

namespace horoscale {
namespace avx2 {
namespace {

void WidenFloat16(std::byte* dst, const std::byte* src, int64_t count);
void NarrowFloat16(std::byte* dst, const std::byte* src, int64_t count);

#include "collectives/fold_float16_f16c.inc"
#include "collectives/fold_loops.inc"

constexpr FoldKernels kKernels = MakeKernels("avx2");

}  // namespace
}  // namespace avx2
}  // namespace horoscale

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace horoscale {
constinit const FoldKernels kAvx2FoldKernels = avx2::kKernels;
}  // namespace horoscale
#endif
