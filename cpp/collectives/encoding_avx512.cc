// The family for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <limits>

#include "collectives/encoding_kernels.h"
#include "collectives/float16.h"
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

#include "collectives/encoding_loops.inc"

constexpr EncodingKernels kKernels = MakeKernels("avx512");

}  // namespace
}  // namespace avx512
}  // namespace horoscale

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace horoscale {
constinit const EncodingKernels kAvx512EncodingKernels = avx512::kKernels;
}  // namespace horoscale
#endif
