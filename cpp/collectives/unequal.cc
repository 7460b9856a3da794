#include "collectives/unequal.h"

#include <cerrno>
#include <cstdlib>
#include <limits>

#include "collectives/round_loop.h"

namespace horoscale {

bool AddRowBytes(int64_t rows, int64_t row_bytes, int64_t* sum) {
  // Leaves room for rounding up to cache lines.
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() - kLineBytes;
  int64_t bytes = 0;
  return rows >= 0 && !__builtin_mul_overflow(rows, row_bytes, &bytes) &&
         !__builtin_add_overflow(*sum, bytes, sum) && *sum <= kMax;
}

Result<std::byte*> PlaceResult(std::string_view operation, int64_t row_bytes,
                               const ResultRoom& room, AllgatherResult* result) {
  int64_t rows = 0;  // with rows of no bytes, any number is allowed
  for (const int64_t part : result->rows) {
    if (__builtin_add_overflow(rows, part, &rows)) {
      return Status::Protocol(std::string(operation) + ": the members announced too many rows");
    }
  }
  if (room.out != nullptr && room.rows == rows) return room.out;
  const int64_t bytes = rows * row_bytes;
  if (bytes == 0) return static_cast<std::byte*>(nullptr);
  const int64_t rounded = DivideUp(bytes, kLineBytes) * kLineBytes;
  void* memory = std::aligned_alloc(kLineBytes, static_cast<size_t>(rounded));
  if (memory == nullptr) {
    return Status::System(
        std::string(operation) + ": no memory for a result of " + std::to_string(bytes) + " bytes",
        ENOMEM);
  }
  result->data = OwnedBytes(static_cast<std::byte*>(memory));
  return result->data.get();
}

}  // namespace horoscale
