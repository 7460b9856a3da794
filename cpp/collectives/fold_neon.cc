// The family for arm64: the loops as the compiler vectorises them for NEON, float16 by instruction.
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

void WidenFloat16(std::byte* dst, const std::byte* src, int64_t count);
void NarrowFloat16(std::byte* dst, const std::byte* src, int64_t count);

#include "collectives/fold_loops.inc"

void WidenFloat16(std::byte* dst, const std::byte* src, int64_t count) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint8x8_t bytes = vld1_u8(reinterpret_cast<const uint8_t*>(src + 2 * i));
    const float32x4_t floats = vcvt_f32_f16(vreinterpret_f16_u8(bytes));
    vst1q_u8(reinterpret_cast<uint8_t*>(dst + 4 * i), vreinterpretq_u8_f32(floats));
  }
  for (; i < count; ++i) {
    Cells<uint32_t>(dst)[i].value = Float16ToFloatBits(Cells<uint16_t>(src)[i].value);
  }
}

void NarrowFloat16(std::byte* dst, const std::byte* src, int64_t count) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const uint8_t*>(src + 4 * i));
    const float16x4_t halves = vcvt_f16_f32(vreinterpretq_f32_u8(bytes));
    vst1_u8(reinterpret_cast<uint8_t*>(dst + 2 * i), vreinterpret_u8_f16(halves));
  }
  for (; i < count; ++i) {
    Cells<uint16_t>(dst)[i].value = Float16FromFloatBits(Cells<uint32_t>(src)[i].value);
  }
}

}  // namespace
}  // namespace neon

constinit const FoldKernels kNeonFoldKernels = neon::MakeKernels("neon");

}  // namespace horoscale
#endif
