// The family for AVX2.
#if defined(__x86_64__)
#include <limits>

#include "collectives/encoding_kernels.h"
#include "collectives/float16.h"
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

#include "collectives/encoding_loops.inc"

constexpr EncodingKernels kKernels = MakeKernels("avx2");

}  // namespace
}  // namespace avx2
}  // namespace horoscale

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace horoscale {
constinit const EncodingKernels kAvx2EncodingKernels = avx2::kKernels;
}  // namespace horoscale
#endif
