#include "collectives/fold.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "collectives/fold_kernels.h"
#include "platform/processor.h"

namespace horoscale {
namespace {

// Two blocks of the accumulator type and a few sources fit in today's smallest L1 caches.
constexpr size_t kBlockBytes = 8192;

// Converts between a 16-bit type and float32 or float64, through float32, for which `scratch` has
// room.
void Convert(const FoldKernels& kernels, DataType to, std::byte* dst, DataType from,
             const std::byte* src, std::byte* scratch, int64_t count) {
  const FoldKernels::Row& target = kernels.rows[static_cast<size_t>(to)];
  if (target.narrow == nullptr) {
    std::byte* const floats = to == DataType::kFloat64 ? scratch : dst;
    kernels.rows[static_cast<size_t>(from)].widen(floats, src, count);
    if (floats != dst) kernels.float64_from_float32(dst, floats, count);
    return;
  }
  if (from == DataType::kFloat64) {
    kernels.float32_from_float64(scratch, src, count);
    src = scratch;
  }
  target.narrow(dst, src, count);
}

// Folds one block at a time, through one family's loops.
class BlockFold {
 public:
  BlockFold(const FoldKernels& kernels, const Reduction& reduction)
      : kernels_(kernels),
        row_(kernels.rows[static_cast<size_t>(reduction.dtype)]),
        combine_(row_.combine[static_cast<size_t>(reduction.op)]),
        reduction_(reduction),
        element_bytes_(static_cast<int64_t>(SizeOf(reduction.dtype))),
        result_bytes_(static_cast<int64_t>(SizeOf(reduction.result.value_or(reduction.dtype)))),
        half_(row_.narrow != nullptr) {}

  int64_t BlockElements() const {
    const size_t accumulator = half_ ? sizeof(float) : SizeOf(reduction_.dtype);
    return static_cast<int64_t>(kBlockBytes / accumulator);
  }

  void Run(std::byte* dst, std::span<const std::byte* const> srcs, int64_t first, int64_t count) {
    dst += first * result_bytes_;
    const int64_t offset = first * element_bytes_;
    std::byte* const result = half_ || reduction_.result ? accumulator_ : dst;
    const std::byte* folded = Load(srcs[0] + offset, accumulator_, count);
    for (size_t s = 1; s < srcs.size(); ++s) {
      const std::byte* next = Load(srcs[s] + offset, operand_, count);
      // Only the final result may be written to dst, which can be one of the sources.
      std::byte* to = s + 1 == srcs.size() ? result : accumulator_;
      combine_(to, folded, next, count);
      folded = to;
    }
    if (folded != result) std::memcpy(result, folded, static_cast<size_t>(count * element_bytes_));
    if (reduction_.op == ReduceOp::kAverage && reduction_.divisor != 1) {
      row_.divide(result, count, reduction_.divisor);
    }
    if (reduction_.postscale != 1.0) row_.scale(result, count, reduction_.postscale);
    Store(dst, count);
  }

  // Converts a single source that needs no other operation.
  void ConvertOnly(std::byte* dst, const std::byte* src, int64_t first, int64_t count) {
    Convert(kernels_, *reduction_.result, dst + first * result_bytes_, reduction_.dtype,
            src + first * element_bytes_, accumulator_, count);
  }

 private:
  // The source in the accumulator type and prescaled: in place, or in `scratch`.
  const std::byte* Load(const std::byte* src, std::byte* scratch, int64_t count) const {
    const bool scaled = reduction_.prescale != 1.0;
    if (!half_ && !scaled) return src;
    if (half_) {
      row_.widen(scratch, src, count);
    } else {
      std::memcpy(scratch, src, static_cast<size_t>(count * element_bytes_));
    }
    if (scaled) row_.scale(scratch, count, reduction_.prescale);
    return scratch;
  }

  // Stores what is still in accumulator_.
  void Store(std::byte* dst, int64_t count) {
    if (half_) row_.narrow(reduction_.result ? operand_ : dst, accumulator_, count);
    if (!reduction_.result) return;
    Convert(kernels_, *reduction_.result, dst, reduction_.dtype, half_ ? operand_ : accumulator_,
            half_ ? accumulator_ : operand_, count);
  }

  const FoldKernels& kernels_;
  const FoldKernels::Row& row_;
  const FoldKernels::Combine combine_;
  const Reduction& reduction_;
  const int64_t element_bytes_;
  const int64_t result_bytes_;
  const bool half_;
  alignas(64) std::byte accumulator_[kBlockBytes];
  alignas(64) std::byte operand_[kBlockBytes];
};

bool IsIdentity(const Reduction& reduction) {
  const bool divides = reduction.op == ReduceOp::kAverage && reduction.divisor != 1;
  return !divides && reduction.prescale == 1.0 && reduction.postscale == 1.0;
}

}  // namespace

Status CheckReduction(const Reduction& reduction) {
  if (reduction.op == ReduceOp::kAdasum) {
    return {StatusCode::kUnsupported, "Adasum is not an elementwise reduction"};
  }
  const auto dtype = static_cast<size_t>(reduction.dtype);
  const auto op = static_cast<size_t>(reduction.op);
  if (dtype >= kNumDataTypes || op >= kNumReduceOps) {
    return Status::InvalidArgument("unknown operator or element type");
  }
  if (kPlainFoldKernels.rows[dtype].combine[op] == nullptr) {
    return {StatusCode::kUnsupported, std::string(Name(reduction.op)) + " of " +
                                          std::string(Name(reduction.dtype)) + " is not defined"};
  }
  if (reduction.divisor < 1) {
    return Status::InvalidArgument("Average over " + std::to_string(reduction.divisor) +
                                   " participants is not defined");
  }
  return Status::Ok();
}

void FoldWith(const FoldKernels& kernels, const Reduction& reduction, std::byte* dst,
              std::span<const std::byte* const> srcs, int64_t count) {
  const bool unchanged = srcs.size() == 1 && IsIdentity(reduction);
  if (unchanged && !reduction.result) {
    const size_t bytes = static_cast<size_t>(count) * SizeOf(reduction.dtype);
    if (dst != srcs[0] && bytes > 0) std::memcpy(dst, srcs[0], bytes);
    return;
  }
  BlockFold fold(kernels, reduction);
  const int64_t block = fold.BlockElements();
  for (int64_t first = 0; first < count; first += block) {
    const int64_t length = std::min(block, count - first);
    if (unchanged) {
      fold.ConvertOnly(dst, srcs[0], first, length);
    } else {
      fold.Run(dst, srcs, first, length);
    }
  }
}

std::span<const FoldKernels* const> AvailableFoldKernels() {
  struct Families {
    std::array<const FoldKernels*, 3> list{};
    size_t count = 0;
    Families() {
#if defined(__x86_64__)
      const VectorInstructions has = FindVectorInstructions();
      if (has.avx512) list[count++] = &kAvx512FoldKernels;
      if (has.avx2) list[count++] = &kAvx2FoldKernels;
#elif defined(__aarch64__)
      list[count++] = &kNeonFoldKernels;
#endif
      list[count++] = &kPlainFoldKernels;
    }
  };
  static const Families families;
  return {families.list.data(), families.count};
}

void Fold(const Reduction& reduction, std::byte* dst, std::span<const std::byte* const> srcs,
          int64_t count) {
  FoldWith(*AvailableFoldKernels().front(), reduction, dst, srcs, count);
}

std::string_view FoldKernelName() { return AvailableFoldKernels().front()->name; }

}  // namespace horoscale
