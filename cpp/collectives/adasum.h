// The arithmetic of Adasum (arXiv 2006.02924): two vectors are added, each less the half of it that
// the other one has as well.
//
//     (1 - a·b / 2a·a) a + (1 - a·b / 2b·b) b
//
// Orthogonal vectors are added, parallel ones averaged; a vector of zeros leaves the other one as
// it is. Products and their sums are float64 (products of float32 values are exact in it), and so
// is the weighted sum, of which each element is rounded once. A value that isn't finite spreads to
// its whole tensor.
//
// Sums are made in kAdasumLanes lanes, element i of a tensor's part in lane i % kAdasumLanes: the
// same bits whatever the pieces are that a part comes in, and for all families of kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace horoscale {

inline constexpr int64_t kAdasumLanes = 16;

// Sums of products of two vectors of one tensor, or of parts of them.
struct AdasumLanes {
  using Lanes = std::array<double, kAdasumLanes>;
  alignas(64) Lanes ab = {};
  alignas(64) Lanes aa = {};
  alignas(64) Lanes bb = {};
};
struct AdasumDots {
  double ab = 0;
  double aa = 0;
  double bb = 0;

  void Add(const AdasumDots& other) {
    ab += other.ab;
    aa += other.aa;
    bb += other.bb;
  }
};
struct AdasumWeights {
  double a = 1;
  double b = 1;
};

// Whether there is an Adasum of such tensors: float16, bfloat16, float32, float64.
bool HasAdasum(DataType dtype);
// The type that it is made in: float32 for 16-bit types, else their own.
DataType AdasumType(DataType dtype);

// Of elements of float32 or float64 at any address. Pieces of a part come in order, and all but the
// last one are multiples of kAdasumLanes elements.
void AddProducts(DataType type, const std::byte* a, const std::byte* b, int64_t count,
                 AdasumLanes& lanes);
AdasumDots SumLanes(const AdasumLanes& lanes);
AdasumWeights WeightsOf(const AdasumDots& dots);
// a = weights.a a + weights.b b
void AddWeighted(DataType type, std::byte* a, const std::byte* b, int64_t count,
                 const AdasumWeights& weights);

}  // namespace horoscale
