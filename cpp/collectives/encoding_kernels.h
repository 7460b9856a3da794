// The kernel families of Encode() and Decode(): the loops over blocks, compiled for one instruction
// set each. Internal to collectives/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/encoding.h"

namespace horoscale {

// What a block of kBlockElements takes: a scale, which is a bfloat16, and the elements.
constexpr int64_t BlockBytes(EncodingKind kind) {
  const int64_t bits = kind == EncodingKind::kInt8 ? 8 : kind == EncodingKind::kInt4 ? 4 : 1;
  return 2 + bits * kBlockElements / 8;
}

struct EncodingKernels {
  // `counted`: how many elements of each block count; the others are 0. residuals may be null.
  using EncodeBlocks = void (*)(std::byte* out, const float* values, float* residuals,
                                int64_t blocks, int64_t counted);
  using DecodeBlocks = void (*)(float* dst, const std::byte* in, int64_t blocks);
  struct Row {
    EncodeBlocks encode;
    DecodeBlocks decode;
    DecodeBlocks decode_and_add;
  };

  std::string_view name;
  Row int8;
  Row int4;
  Row one_bit;

  const Row& RowOf(EncodingKind kind) const {
    return kind == EncodingKind::kInt8 ? int8 : kind == EncodingKind::kInt4 ? int4 : one_bit;
  }
};

// The families that this processor can run, the fastest first; the last one is "plain".
std::span<const EncodingKernels* const> AvailableEncodingKernels();

// Encode() and Decode() of blocks with a family of the caller's choice.
void EncodeWith(const EncodingKernels& kernels, EncodingKind kind, std::byte* out,
                const float* values, float* residuals, int64_t count);
void DecodeWith(const EncodingKernels& kernels, EncodingKind kind, float* dst, const std::byte* in,
                int64_t count, bool add);

extern const EncodingKernels kPlainEncodingKernels;
#if defined(__x86_64__)
extern const EncodingKernels kAvx2EncodingKernels;
extern const EncodingKernels kAvx512EncodingKernels;
#elif defined(__aarch64__)
extern const EncodingKernels kNeonEncodingKernels;
#endif

}  // namespace horoscale
