// The family for any processor: what the compiler makes of the loops for the baseline of the build.
#include <limits>
#include <type_traits>

#include "collectives/float16.h"
#include "collectives/fold_kernels.h"
#include "collectives/fold_target.h"

namespace horoscale {
namespace plain {
namespace {

void WidenFloat16(std::byte* dst, const std::byte* src, int64_t count);
void NarrowFloat16(std::byte* dst, const std::byte* src, int64_t count);

#include "collectives/fold_loops.inc"

void WidenFloat16(std::byte* dst, const std::byte* src, int64_t count) {
  Cell<uint32_t>* to = Cells<uint32_t>(dst);
  const Cell<uint16_t>* from = Cells<uint16_t>(src);
  HS_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) to[i].value = Float16ToFloatBits(from[i].value);
}

void NarrowFloat16(std::byte* dst, const std::byte* src, int64_t count) {
  Cell<uint16_t>* to = Cells<uint16_t>(dst);
  const Cell<uint32_t>* from = Cells<uint32_t>(src);
  HS_INDEPENDENT_ITERATIONS
  for (int64_t i = 0; i < count; ++i) to[i].value = Float16FromFloatBits(from[i].value);
}

}  // namespace
}  // namespace plain

constinit const FoldKernels kPlainFoldKernels = plain::MakeKernels("plain");

}  // namespace horoscale
