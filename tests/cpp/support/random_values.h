// Seeded values of any element type for tests of reductions: ordinary numbers, and occasionally
// edge cases (zeros of both signs, infinities, NaN with payloads, extremes, subnormal numbers).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>

#include "base/types.h"
#include "support/reference_fold.h"

namespace horoscale::testing {

template <typename T>
void PutReal(std::mt19937_64& random, std::byte* to) {
  T value = static_cast<T>(std::normal_distribution<double>(0, 3)(random));
  if (random() % 16 == 0) {
    // Any bit pattern: mostly of odd size, sometimes NaN or subnormal.
    const uint64_t bits = random();
    std::memcpy(&value, &bits, sizeof(T));
  } else if (random() % 16 == 0) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    const T special[] = {T{0},
                         -T{0},
                         kInfinity,
                         -kInfinity,
                         std::numeric_limits<T>::max(),
                         std::numeric_limits<T>::denorm_min(),
                         std::numeric_limits<T>::quiet_NaN()};
    value = special[random() % std::size(special)];
  }
  std::memcpy(to, &value, sizeof(T));
}

inline Bytes RandomValues(std::mt19937_64& random, DataType dtype, int64_t count) {
  const size_t element = SizeOf(dtype);
  Bytes values(static_cast<size_t>(count) * element);
  for (size_t at = 0; at < values.size(); at += element) {
    std::byte* to = &values[at];
    switch (dtype) {
      case DataType::kFloat32:
        PutReal<float>(random, to);
        break;
      case DataType::kFloat64:
        PutReal<double>(random, to);
        break;
      case DataType::kComplex64:
        PutReal<float>(random, to);
        PutReal<float>(random, to + 4);
        break;
      case DataType::kComplex128:
        PutReal<double>(random, to);
        PutReal<double>(random, to + 8);
        break;
      case DataType::kBool:
        *to = std::byte{random() % 2 != 0};
        break;
      case DataType::kBfloat16:
      case DataType::kFloat16:
        if (random() % 4 != 0) {
          const auto value = static_cast<float>(std::normal_distribution<double>(0, 3)(random));
          if (dtype == DataType::kFloat16) {
            Float16::Store(to, value);
          } else {
            Bfloat16::Store(to, value);
          }
          break;
        }
        [[fallthrough]];
      default: {
        const uint64_t bits = random();
        std::memcpy(to, &bits, element);
      }
    }
  }
  return values;
}

}  // namespace horoscale::testing
