// The family for arm64: the loops, which the compiler vectorizes for NEON, with instructions for
// float16.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <limits>
#include <type_traits>

#include "collectives/float16.h"
#include "collectives/fold_kernels.h"
#include "collectives/fold_target.h"

namespace horoscale {
namespace neon {
namespace {

#define HS_FOLD_NEON
#include "collectives/fold_loops.inc"

}  // namespace
}  // namespace neon

constinit const FoldKernels kNeonFoldKernels = neon::MakeKernels("neon");

}  // namespace horoscale
#endif
