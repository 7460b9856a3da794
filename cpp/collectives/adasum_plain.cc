// The portable family: the loops, compiled for the build's baseline.
#include <limits>

#include "collectives/adasum_kernels.h"
#include "collectives/fold_target.h"

namespace horoscale {
namespace plain {
namespace {

constexpr int64_t kWidth = 2;
#include "collectives/adasum_loops.inc"

}  // namespace
}  // namespace plain

constinit const AdasumKernels kPlainAdasumKernels = plain::MakeKernels("plain");

}  // namespace horoscale
