// The family for arm64: the loops, which the compiler vectorizes for NEON.
#if defined(__aarch64__)
#include <limits>

#include "collectives/adasum_kernels.h"
#include "collectives/fold_target.h"

namespace horoscale {
namespace neon {
namespace {

constexpr int64_t kWidth = 2;
#include "collectives/adasum_loops.inc"

}  // namespace
}  // namespace neon

constinit const AdasumKernels kNeonAdasumKernels = neon::MakeKernels("neon");

}  // namespace horoscale
#endif
