// The family for AVX2 with F16C.
#if defined(__x86_64__)
#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "collectives/float16.h"
#include "collectives/fold_kernels.h"
#include "collectives/fold_target.h"

HS_BEGIN_AVX2

namespace horoscale {
namespace avx2 {
namespace {

#define HS_FOLD_F16C
#include "collectives/fold_loops.inc"

constexpr FoldKernels kKernels = MakeKernels("avx2");

}  // namespace
}  // namespace avx2
}  // namespace horoscale

HS_END_TARGET

namespace horoscale {
constinit const FoldKernels kAvx2FoldKernels = avx2::kKernels;
}  // namespace horoscale
#endif
