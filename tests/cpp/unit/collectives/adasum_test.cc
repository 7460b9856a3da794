#include "collectives/adasum.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "collectives/adasum_kernels.h"
#include "collectives/adasum_stages.h"

namespace horoscale {
namespace {

template <typename T>
std::vector<T> Randoms(std::mt19937_64& random, size_t count) {
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(normal(random));
  return values;
}

template <typename T>
const std::byte* BytesAt(const std::vector<T>& values, size_t first = 0) {
  return reinterpret_cast<const std::byte*>(values.data() + first);
}

template <typename T>
void ExpectFamiliesToAgree(DataType type) {
  std::mt19937_64 random(1);
  for (const size_t count :
       {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{1003}}) {
    const auto a = Randoms<T>(random, count);
    const auto b = Randoms<T>(random, count);
    AdasumLanes expected;
    double dot = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto x = static_cast<double>(a[i]);
      const auto y = static_cast<double>(b[i]);
      expected.ab[i % kAdasumLanes] += x * y;
      expected.aa[i % kAdasumLanes] += x * x;
      expected.bb[i % kAdasumLanes] += y * y;
      dot += x * y;
    }
    EXPECT_NEAR(SumLanes(expected).ab, dot, 1e-9);
    for (const AdasumKernels* kernels : AvailableAdasumKernels()) {
      SCOPED_TRACE(kernels->name);
      const bool is_wide = type == DataType::kFloat64;
      AdasumLanes lanes;
      (is_wide ? kernels->products_of_float64 : kernels->products_of_float32)(
          BytesAt(a), BytesAt(b), static_cast<int64_t>(count), lanes);
      EXPECT_EQ(lanes.ab, expected.ab);
      EXPECT_EQ(lanes.aa, expected.aa);
      EXPECT_EQ(lanes.bb, expected.bb);
      auto sum = a;
      (is_wide ? kernels->weighted_float64 : kernels->weighted_float32)(
          reinterpret_cast<std::byte*>(sum.data()), BytesAt(b), static_cast<int64_t>(count),
          {0.3, 0.7});
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(sum[i], static_cast<T>(0.3 * static_cast<double>(a[i]) +
                                         0.7 * static_cast<double>(b[i])));
      }
    }
  }
}

TEST(AdasumTest, AllFamiliesGiveTheSameBits) {
  ExpectFamiliesToAgree<float>(DataType::kFloat32);
  ExpectFamiliesToAgree<double>(DataType::kFloat64);
}

TEST(AdasumTest, PiecesGiveTheBitsOfTheWhole) {
  std::mt19937_64 random(2);
  const auto a = Randoms<float>(random, 1003);
  const auto b = Randoms<float>(random, 1003);
  AdasumLanes whole;
  AddProducts(DataType::kFloat32, BytesAt(a), BytesAt(b), 1003, whole);
  AdasumLanes pieces;
  const std::vector<int64_t> counts = {16, 320, 0, 640, 27};
  size_t first = 0;
  for (const int64_t count : counts) {
    AddProducts(DataType::kFloat32, BytesAt(a, first), BytesAt(b, first), count, pieces);
    first += static_cast<size_t>(count);
  }
  EXPECT_EQ(pieces.ab, whole.ab);
  EXPECT_EQ(pieces.aa, whole.aa);
  EXPECT_EQ(pieces.bb, whole.bb);
}

TEST(AdasumTest, WeightsAddWhatIsOrthogonalAndAverageWhatIsParallel) {
  const AdasumWeights orthogonal = WeightsOf({.ab = 0, .aa = 4, .bb = 9});
  EXPECT_EQ(orthogonal.a, 1);
  EXPECT_EQ(orthogonal.b, 1);
  const AdasumWeights equal = WeightsOf({.ab = 4, .aa = 4, .bb = 4});
  EXPECT_EQ(equal.a, 0.5);
  EXPECT_EQ(equal.b, 0.5);
  const AdasumWeights zero = WeightsOf({.ab = 0, .aa = 0, .bb = 4});
  EXPECT_EQ(zero.a, 1);
  EXPECT_EQ(zero.b, 1);
}

TEST(AdasumTest, TypesThatHaveIt) {
  for (int dtype = 0; dtype < kNumDataTypes; ++dtype) {
    const auto type = static_cast<DataType>(dtype);
    EXPECT_EQ(HasAdasum(type), IsFloating(type));
  }
  EXPECT_EQ(AdasumType(DataType::kFloat16), DataType::kFloat32);
  EXPECT_EQ(AdasumType(DataType::kBfloat16), DataType::kFloat32);
  EXPECT_EQ(AdasumType(DataType::kFloat64), DataType::kFloat64);
}

}  // namespace
}  // namespace horoscale
