// The family for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <limits>

#include "collectives/encoding_kernels.h"
#include "collectives/float16.h"
#include "collectives/fold_target.h"

HS_BEGIN_AVX512

namespace horoscale {
namespace avx512 {
namespace {

#include "collectives/encoding_loops.inc"

constexpr EncodingKernels kKernels = MakeKernels("avx512");

}  // namespace
}  // namespace avx512
}  // namespace horoscale

HS_END_TARGET

namespace horoscale {
constinit const EncodingKernels kAvx512EncodingKernels = avx512::kKernels;
}  // namespace horoscale
#endif
