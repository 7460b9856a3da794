// The family for arm64: the loops, which the compiler vectorizes for NEON.
#if defined(__aarch64__)
#include <limits>

#include "collectives/encoding_kernels.h"
#include "collectives/float16.h"
#include "collectives/fold_target.h"

namespace horoscale {
namespace neon {
namespace {

#include "collectives/encoding_loops.inc"

}  // namespace
}  // namespace neon

constinit const EncodingKernels kNeonEncodingKernels = neon::MakeKernels("neon");

}  // namespace horoscale
#endif
