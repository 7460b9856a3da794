// float16, bfloat16 and float32, in integer arithmetic: for processors without conversion
// instructions, and for the ends of arrays where there are some.
#pragma once

#include <cstdint>

namespace horoscale {

[[gnu::always_inline]] inline float FloatFromBits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
[[gnu::always_inline]] inline uint32_t BitsOfFloat(float x) {
  return __builtin_bit_cast(uint32_t, x);
}

[[gnu::always_inline]] inline uint32_t Float16ToFloatBits(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = half & 0x7c00u;
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t normal = magnitude + (112u << 23);
  const uint32_t infinite = magnitude | (255u << 23);
  const uint32_t subnormal =
      BitsOfFloat(static_cast<float>(static_cast<int32_t>(half & 0x3ffu)) * 0x1p-24f);
  return sign | (exponent == 0 ? subnormal : exponent == 0x7c00u ? infinite : normal);
}

// To nearest, ties to even; NaN becomes the one quiet NaN.
[[gnu::always_inline]] inline uint16_t Float16FromFloatBits(uint32_t bits) {
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
  // One unit of 0.5f is 2^-24, the unit of a subnormal float16: the addition rounds to it.
  const uint32_t subnormal = BitsOfFloat(FloatFromBits(magnitude) + 0.5f) - BitsOfFloat(0.5f);
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t number = sign | (magnitude >= 0x477ff000u ? 0x7c00u : finite);
  return static_cast<uint16_t>(magnitude > 0x7f800000u ? 0x7e00u : number);
}

[[gnu::always_inline]] inline uint32_t Bfloat16ToFloatBits(uint16_t upper_half) {
  return uint32_t{upper_half} << 16;
}

// As Float16FromFloatBits().
[[gnu::always_inline]] inline uint16_t Bfloat16FromFloatBits(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

}  // namespace horoscale
