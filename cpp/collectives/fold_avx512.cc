// The family for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "collectives/float16.h"
#include "collectives/fold_kernels.h"
#include "collectives/fold_target.h"

HS_BEGIN_AVX512

namespace horoscale {
namespace avx512 {
namespace {

#define HS_FOLD_F16C
#include "collectives/fold_loops.inc"

constexpr FoldKernels kKernels = MakeKernels("avx512");

}  // namespace
}  // namespace avx512
}  // namespace horoscale

HS_END_TARGET

namespace horoscale {
constinit const FoldKernels kAvx512FoldKernels = avx512::kKernels;
}  // namespace horoscale
#endif
