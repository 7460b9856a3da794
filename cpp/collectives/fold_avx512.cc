// The family for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "collectives/float16.h"
#include "collectives/fold_kernels.h"
#include "collectives/fold_target.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,prefer-vector-width=512")
#endif

namespace horoscale {
namespace avx512 {
namespace {

#define HS_FOLD_F16C
#include "collectives/fold_loops.inc"

constexpr FoldKernels kKernels = MakeKernels("avx512");

}  // namespace
}  // namespace avx512
}  // namespace horoscale

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace horoscale {
constinit const FoldKernels kAvx512FoldKernels = avx512::kKernels;
}  // namespace horoscale
#endif
