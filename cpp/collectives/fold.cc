#include "collectives/fold.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "collectives/fold_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace horoscale {
namespace {

// Two blocks of the accumulator type and a few sources fit in the smallest L1 caches of today.
constexpr size_t kBlockBytes = 8192;

// A fold of one block at a time, through one family's loops.
class BlockFold {
 public:
  BlockFold(const FoldKernels& kernels, const Reduction& reduction)
      : row_(kernels.rows[static_cast<size_t>(reduction.dtype)]),
        combine_(row_.combine[static_cast<size_t>(reduction.op)]),
        reduction_(reduction),
        element_bytes_(static_cast<int64_t>(SizeOf(reduction.dtype))) {}

  int64_t BlockElements() const {
    const size_t accumulator = row_.widen != nullptr ? sizeof(float) : SizeOf(reduction_.dtype);
    return static_cast<int64_t>(kBlockBytes / accumulator);
  }

  void Run(std::byte* dst, std::span<const std::byte* const> srcs, int64_t first, int64_t count) {
    const bool half = row_.narrow != nullptr;
    const int64_t offset = first * element_bytes_;
    const std::byte* folded = Load(srcs[0] + offset, accumulator_, count);
    for (size_t s = 1; s < srcs.size(); ++s) {
      const std::byte* next = Load(srcs[s] + offset, operand_, count);
      // Only the last result may go to dst: it can be one of the sources.
      std::byte* to = s + 1 == srcs.size() && !half ? dst + offset : accumulator_;
      combine_(to, folded, next, count);
      folded = to;
    }
    std::byte* result = half ? accumulator_ : dst + offset;
    if (folded != result) std::memcpy(result, folded, static_cast<size_t>(count * element_bytes_));
    if (reduction_.op == ReduceOp::kAverage && reduction_.divisor != 1) {
      row_.divide(result, count, reduction_.divisor);
    }
    if (reduction_.postscale != 1.0) row_.scale(result, count, reduction_.postscale);
    if (half) row_.narrow(dst + offset, result, count);
  }

 private:
  // The source in the accumulator type and prescaled: where it is, or in `scratch`.
  const std::byte* Load(const std::byte* src, std::byte* scratch, int64_t count) const {
    const bool scaled = reduction_.prescale != 1.0;
    if (row_.widen == nullptr && !scaled) return src;
    if (row_.widen != nullptr) {
      row_.widen(scratch, src, count);
    } else {
      std::memcpy(scratch, src, static_cast<size_t>(count * element_bytes_));
    }
    if (scaled) row_.scale(scratch, count, reduction_.prescale);
    return scratch;
  }

  const FoldKernels::Row& row_;
  const FoldKernels::Combine combine_;
  const Reduction& reduction_;
  const int64_t element_bytes_;
  alignas(64) std::byte accumulator_[kBlockBytes];
  alignas(64) std::byte operand_[kBlockBytes];
};

#if defined(__x86_64__)
// clang's __builtin_cpu_supports() doesn't know f16c before version 15.
bool SupportsF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool IsIdentity(const Reduction& reduction) {
  const bool divides = reduction.op == ReduceOp::kAverage && reduction.divisor != 1;
  return !divides && reduction.prescale == 1.0 && reduction.postscale == 1.0;
}

}  // namespace

Status CheckReduction(const Reduction& reduction) {
  if (reduction.op == ReduceOp::kAdasum) {
    return {StatusCode::kUnimplemented, "Adasum is not an elementwise reduction"};
  }
  const auto dtype = static_cast<size_t>(reduction.dtype);
  const auto op = static_cast<size_t>(reduction.op);
  if (dtype >= kNumDataTypes || op >= kNumReduceOps ||
      kPlainFoldKernels.rows[dtype].combine[op] == nullptr) {
    return Status::InvalidArgument(std::string(Name(reduction.op)) + " of " +
                                   std::string(Name(reduction.dtype)) + " is not defined");
  }
  if (reduction.divisor < 1) {
    return Status::InvalidArgument("Average over " + std::to_string(reduction.divisor) +
                                   " participants is not defined");
  }
  return Status::Ok();
}

void FoldWith(const FoldKernels& kernels, const Reduction& reduction, std::byte* dst,
              std::span<const std::byte* const> srcs, int64_t count) {
  if (srcs.size() == 1 && IsIdentity(reduction)) {
    const size_t bytes = static_cast<size_t>(count) * SizeOf(reduction.dtype);
    if (dst != srcs[0] && bytes > 0) std::memcpy(dst, srcs[0], bytes);
    return;
  }
  BlockFold fold(kernels, reduction);
  const int64_t block = fold.BlockElements();
  for (int64_t first = 0; first < count; first += block) {
    fold.Run(dst, srcs, first, std::min(block, count - first));
  }
}

std::span<const FoldKernels* const> AvailableFoldKernels() {
  struct Families {
    std::array<const FoldKernels*, 3> list{};
    size_t count = 0;
    Families() {
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2") && SupportsF16c()) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
          list[count++] = &kAvx512FoldKernels;
        }
        list[count++] = &kAvx2FoldKernels;
      }
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
