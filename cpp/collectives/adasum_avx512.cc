// The family for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <limits>

#include "collectives/adasum_kernels.h"
#include "collectives/fold_target.h"

HS_BEGIN_AVX512

namespace horoscale {
namespace avx512 {
namespace {

constexpr int64_t kWidth = 8;
#include "collectives/adasum_loops.inc"

constexpr AdasumKernels kKernels = MakeKernels("avx512");

}  // namespace
}  // namespace avx512
}  // namespace horoscale

HS_END_TARGET

namespace horoscale {
constinit const AdasumKernels kAvx512AdasumKernels = avx512::kKernels;
}  // namespace horoscale
#endif
