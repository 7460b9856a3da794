// Encode, Decode: the arithmetic of what hosts send each other where that is smaller than a 16-bit
// type: blocks of 8-bit and 4-bit integers and of signs, and the largest values of a group.
//
// What a value loses is its residual: value + residual = what decodes + the new residual, in
// float32. Where a block of values isn't finite it decodes to NaN, or, of the largest ones, to what
// they are, and its residuals stay as they were.
//
// The kernel is chosen once per process for the CPU at hand (AVX-512, AVX2, NEON or plain); all
// give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/encoding.h"

namespace horoscale {

// What so many values of a group, at most kGroupElements, take. `encoding` is lossy.
int64_t EncodedBytes(const Encoding& encoding, int64_t count);

// Writes the values of a group, to each of which its residual is added, and keeps what is lost as
// the new residuals. `residuals` may be null. `parameter` of a top-k one is for a group of
// kGroupElements; of a smaller one its share is sent.
void Encode(const Encoding& encoding, std::byte* out, const float* values, float* residuals,
            int64_t count);

// Reads EncodedBytes(), which may be any. To dst, or added to it.
void Decode(const Encoding& encoding, float* dst, const std::byte* in, int64_t count);
void DecodeAndAdd(const Encoding& encoding, float* dst, const std::byte* in, int64_t count);

}  // namespace horoscale
