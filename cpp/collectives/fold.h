// Fold: the arithmetic of every reduction.
//
//     dst[i] = finish(…op(op(pre(srcs[0][i]), pre(srcs[1][i])), …))
//
// The left fold runs in the accumulator type: float32 for float16, bfloat16 and float32, float64
// for float64, the complex type, the integer type (wrapping). pre() multiplies by the prescale
// factor; finish() divides by the divisor (Average), multiplies by the postscale factor and rounds
// once. Scale factors act in float32 for float16, bfloat16 and float32, in float64 for all others;
// integers are converted back (towards zero, saturating). Integer Average divides towards zero.
// bool: Sum, Max and BitwiseOr are or, Product, Min and BitwiseAnd are and; a scaled truth value is
// true unless the product is zero. NaN spreads through Min and Max, and every NaN that arithmetic
// gives is the one quiet NaN without sign or payload. One source with nothing to do to it is copied
// bit by bit. A result that is to be of another type is converted last (float64 through float32).
// Where nothing but that is done to a source, its NaN may be any.
//
// The kernel is chosen once per process for the CPU at hand (AVX-512, AVX2, NEON or plain); all
// give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "collectives/collective.h"

namespace horoscale {

// Whether the reduction is defined: Average of bool, Min and Max of complex, the bitwise operators
// of floating-point and complex numbers, and Adasum are not.
Status CheckReduction(const Reduction& reduction);

// dst may be one of the srcs, unless the result is of another type; otherwise they don't overlap.
// No alignment is needed. count in elements.
void Fold(const Reduction& reduction, std::byte* dst, std::span<const std::byte* const> srcs,
          int64_t count);

// The name of the kernel family in use ("avx512", "avx2", "neon", "plain").
std::string_view FoldKernelName();

}  // namespace horoscale
