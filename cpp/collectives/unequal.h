// What allgather and alltoall share: sizes that come from peers, and memory for results.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "collectives/collective.h"

namespace horoscale {

// Adds the bytes of `rows` rows to *sum. False if rows is negative or the sum is no size.
[[nodiscard]] bool AddRowBytes(int64_t rows, int64_t row_bytes, int64_t* sum);

// Where a result of result->rows goes: to the caller's memory if it is of that size, else to memory
// that result->data is given, aligned to cache lines; null for no bytes. The bytes are a size.
Result<std::byte*> PlaceResult(std::string_view operation, int64_t row_bytes,
                               const ResultRoom& room, AllgatherResult* result);

}  // namespace horoscale
