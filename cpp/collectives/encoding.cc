#include "collectives/encoding.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "collectives/encoding_kernels.h"
#include "collectives/encoding_topk.h"
#include "platform/processor.h"

namespace horoscale {
namespace {

// The end of a group that doesn't fill a block, padded to a full block.
struct LastBlock {
  explicit LastBlock(int64_t count) : bytes(static_cast<size_t>(count) * sizeof(float)) {}

  size_t bytes;
  alignas(64) float values[kBlockElements] = {};
  alignas(64) float residuals[kBlockElements] = {};
};

const EncodingKernels& Kernels() { return *AvailableEncodingKernels().front(); }

}  // namespace

int64_t EncodedBytes(const Encoding& encoding, int64_t count) {
  if (encoding.kind == EncodingKind::kTopK) return TopK(encoding.parameter, count).bytes();
  return (count + kBlockElements - 1) / kBlockElements * BlockBytes(encoding.kind);
}

void EncodeWith(const EncodingKernels& kernels, EncodingKind kind, std::byte* out,
                const float* values, float* residuals, int64_t count) {
  const EncodingKernels::Row& row = kernels.RowOf(kind);
  const int64_t blocks = count / kBlockElements;
  row.encode(out, values, residuals, blocks, kBlockElements);
  const int64_t done = blocks * kBlockElements;
  if (done == count) return;
  LastBlock last(count - done);
  std::memcpy(last.values, values + done, last.bytes);
  if (residuals != nullptr) std::memcpy(last.residuals, residuals + done, last.bytes);
  row.encode(out + blocks * BlockBytes(kind), last.values,
             residuals == nullptr ? nullptr : last.residuals, 1, count - done);
  if (residuals != nullptr) std::memcpy(residuals + done, last.residuals, last.bytes);
}

void DecodeWith(const EncodingKernels& kernels, EncodingKind kind, float* dst, const std::byte* in,
                int64_t count, bool add) {
  const EncodingKernels::Row& row = kernels.RowOf(kind);
  const auto decode = add ? row.decode_and_add : row.decode;
  const int64_t blocks = count / kBlockElements;
  decode(dst, in, blocks);
  const int64_t done = blocks * kBlockElements;
  if (done == count) return;
  LastBlock last(count - done);
  std::memcpy(last.values, dst + done, last.bytes);
  decode(last.values, in + blocks * BlockBytes(kind), 1);
  std::memcpy(dst + done, last.values, last.bytes);
}

void Encode(const Encoding& encoding, std::byte* out, const float* values, float* residuals,
            int64_t count) {
  if (encoding.kind == EncodingKind::kTopK) {
    return TopK(encoding.parameter, count).Encode(out, values, residuals);
  }
  EncodeWith(Kernels(), encoding.kind, out, values, residuals, count);
}

void Decode(const Encoding& encoding, float* dst, const std::byte* in, int64_t count) {
  if (encoding.kind == EncodingKind::kTopK) {
    std::fill_n(dst, count, 0.0f);
    return TopK(encoding.parameter, count).DecodeAndAdd(dst, in);
  }
  DecodeWith(Kernels(), encoding.kind, dst, in, count, false);
}

void DecodeAndAdd(const Encoding& encoding, float* dst, const std::byte* in, int64_t count) {
  if (encoding.kind == EncodingKind::kTopK) {
    return TopK(encoding.parameter, count).DecodeAndAdd(dst, in);
  }
  DecodeWith(Kernels(), encoding.kind, dst, in, count, true);
}

std::span<const EncodingKernels* const> AvailableEncodingKernels() {
  struct Families {
    std::array<const EncodingKernels*, 3> list{};
    size_t count = 0;
    Families() {
#if defined(__x86_64__)
      const VectorInstructions has = FindVectorInstructions();
      if (has.avx512) list[count++] = &kAvx512EncodingKernels;
      if (has.avx2) list[count++] = &kAvx2EncodingKernels;
#elif defined(__aarch64__)
      list[count++] = &kNeonEncodingKernels;
#endif
      list[count++] = &kPlainEncodingKernels;
    }
  };
  static const Families families;
  return {families.list.data(), families.count};
}

}  // namespace horoscale
