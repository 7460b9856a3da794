// The family for AVX2.
#if defined(__x86_64__)
#include <limits>

#include "collectives/adasum_kernels.h"
#include "collectives/fold_target.h"

HS_BEGIN_AVX2

namespace horoscale {
namespace avx2 {
namespace {

constexpr int64_t kWidth = 4;
#include "collectives/adasum_loops.inc"

constexpr AdasumKernels kKernels = MakeKernels("avx2");

}  // namespace
}  // namespace avx2
}  // namespace horoscale

HS_END_TARGET

namespace horoscale {
constinit const AdasumKernels kAvx2AdasumKernels = avx2::kKernels;
}  // namespace horoscale
#endif
