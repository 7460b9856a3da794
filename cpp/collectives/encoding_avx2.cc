// The family for AVX2.
#if defined(__x86_64__)
#include <limits>

#include "collectives/encoding_kernels.h"
#include "collectives/float16.h"
#include "collectives/fold_target.h"

HS_BEGIN_AVX2

namespace horoscale {
namespace avx2 {
namespace {

#include "collectives/encoding_loops.inc"

constexpr EncodingKernels kKernels = MakeKernels("avx2");

}  // namespace
}  // namespace avx2
}  // namespace horoscale

HS_END_TARGET

namespace horoscale {
constinit const EncodingKernels kAvx2EncodingKernels = avx2::kKernels;
}  // namespace horoscale
#endif
