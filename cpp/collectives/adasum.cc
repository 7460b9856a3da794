#include "collectives/adasum.h"

#include <array>

#include "collectives/adasum_kernels.h"
#include "platform/processor.h"

namespace horoscale {
namespace {

double SumLanes(AdasumLanes::Lanes lanes) {
  for (size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace

std::span<const AdasumKernels* const> AvailableAdasumKernels() {
  struct Families {
    std::array<const AdasumKernels*, 3> list{};
    size_t count = 0;
    Families() {
#if defined(__x86_64__)
      const VectorInstructions has = FindVectorInstructions();
      if (has.avx512) list[count++] = &kAvx512AdasumKernels;
      if (has.avx2) list[count++] = &kAvx2AdasumKernels;
#elif defined(__aarch64__)
      list[count++] = &kNeonAdasumKernels;
#endif
      list[count++] = &kPlainAdasumKernels;
    }
  };
  static const Families families;
  return {families.list.data(), families.count};
}

bool HasAdasum(DataType dtype) { return IsFloating(dtype); }

DataType AdasumType(DataType dtype) {
  return dtype == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32;
}

void AddProducts(DataType type, const std::byte* a, const std::byte* b, int64_t count,
                 AdasumLanes& lanes) {
  const AdasumKernels& kernels = *AvailableAdasumKernels().front();
  const bool is_wide = type == DataType::kFloat64;
  (is_wide ? kernels.products_of_float64 : kernels.products_of_float32)(a, b, count, lanes);
}

AdasumDots SumLanes(const AdasumLanes& lanes) {
  return {SumLanes(lanes.ab), SumLanes(lanes.aa), SumLanes(lanes.bb)};
}

AdasumWeights WeightsOf(const AdasumDots& dots) {
  AdasumWeights weights;
  if (dots.aa != 0) weights.a = 1 - dots.ab / (2 * dots.aa);
  if (dots.bb != 0) weights.b = 1 - dots.ab / (2 * dots.bb);
  return weights;
}

void AddWeighted(DataType type, std::byte* a, const std::byte* b, int64_t count,
                 const AdasumWeights& weights) {
  const AdasumKernels& kernels = *AvailableAdasumKernels().front();
  const bool is_wide = type == DataType::kFloat64;
  (is_wide ? kernels.weighted_float64 : kernels.weighted_float32)(a, b, count, weights);
}

}  // namespace horoscale
