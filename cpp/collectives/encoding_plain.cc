// The portable family: the loops, compiled for the build's baseline.
#include <limits>

#include "collectives/encoding_kernels.h"
#include "collectives/float16.h"
#include "collectives/fold_target.h"

namespace horoscale {
namespace plain {
namespace {

#include "collectives/encoding_loops.inc"

}  // namespace
}  // namespace plain

constinit const EncodingKernels kPlainEncodingKernels = plain::MakeKernels("plain");

}  // namespace horoscale
