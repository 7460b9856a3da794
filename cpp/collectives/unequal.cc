#include "collectives/unequal.h"

#include <cerrno>
#include <cstdlib>
#include <limits>

#include "collectives/round_loop.h"

namespace horoscale {

bool AddRowBytes(int64_t rows, int64_t row_bytes, int64_t* sum) {
  // Room for rounding up to cache lines.
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() - kLineBytes;
  int64_t bytes = 0;
  return rows >= 0 && !__builtin_mul_overflow(rows, row_bytes, &bytes) &&
         !__builtin_add_overflow(*sum, bytes, sum) && *sum <= kMax;
}

Result<OwnedBytes> AllocateResult(std::string_view operation, int64_t bytes) {
  if (bytes == 0) return OwnedBytes();
  const int64_t rounded = DivideUp(bytes, kLineBytes) * kLineBytes;
  void* memory = std::aligned_alloc(kLineBytes, static_cast<size_t>(rounded));
  if (memory == nullptr) {
    return Status::System(
        std::string(operation) + ": no memory for a result of " + std::to_string(bytes) + " bytes",
        ENOMEM);
  }
  return OwnedBytes(static_cast<std::byte*>(memory));
}

}  // namespace horoscale
