// The portable family: the loops, compiled for the build's baseline.
#include <limits>
#include <type_traits>

#include "collectives/float16.h"
#include "collectives/fold_kernels.h"
#include "collectives/fold_target.h"

namespace horoscale {
namespace plain {
namespace {

#include "collectives/fold_loops.inc"

}  // namespace
}  // namespace plain

constinit const FoldKernels kPlainFoldKernels = plain::MakeKernels("plain");

}  // namespace horoscale
