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

#define HS_FOLD_F16C
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
