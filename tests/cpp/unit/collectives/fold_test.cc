#include "collectives/fold.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <random>
#include <string>

#include "collectives/fold_kernels.h"
#include "support/random_values.h"
#include "support/reference_fold.h"

namespace horoscale {
namespace {

using testing::Bytes;

std::string Describe(const Reduction& r) {
  return std::string(Name(r.op)) + " of " + std::string(Name(r.dtype)) + " prescale " +
         std::to_string(r.prescale) + " postscale " + std::to_string(r.postscale) + " divisor " +
         std::to_string(r.divisor);
}

// All reductions that are defined, with and without scale factors.
std::vector<Reduction> AllReductions() {
  std::vector<Reduction> all;
  for (int dtype = 0; dtype < kNumDataTypes; ++dtype) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      for (double prescale : {1.0, 0.3}) {
        for (double postscale : {1.0, -2.5}) {
          Reduction r = {static_cast<DataType>(dtype), static_cast<ReduceOp>(op), prescale,
                         postscale, 1};
          if (CheckReduction(r).ok()) all.push_back(r);
        }
      }
    }
  }
  return all;
}

// `in_place`: the index of the source that is also the destination; negative if none. `shift` makes
// addresses odd.
Bytes RunFold(const FoldKernels& kernels, const Reduction& r, const std::vector<Bytes>& sources,
              int in_place, size_t shift) {
  std::vector<Bytes> copies;
  std::vector<const std::byte*> pointers;
  for (const Bytes& source : sources) {
    copies.emplace_back(shift);
    copies.back().insert(copies.back().end(), source.begin(), source.end());
  }
  for (const Bytes& copy : copies) pointers.push_back(copy.data() + shift);
  copies.emplace_back(sources[0].size() + shift, std::byte{0x5a});
  Bytes& target = in_place < 0 ? copies.back() : copies[static_cast<size_t>(in_place)];
  const auto count = static_cast<int64_t>(sources[0].size() / SizeOf(r.dtype));
  FoldWith(kernels, r, target.data() + shift, pointers, count);
  return {target.begin() + static_cast<ptrdiff_t>(shift), target.end()};
}

TEST(FoldTest, EveryFamilyGivesTheBitsOfTheReference) {
  std::mt19937_64 random(7);
  for (Reduction r : AllReductions()) {
    for (int64_t count : {0, 1, 3, 7, 8, 9, 31, 63, 64, 65, 511, 2049}) {
      const size_t members = 1 + random() % 5;
      r.divisor = static_cast<int64_t>(1 + random() % 8);
      std::vector<Bytes> sources;
      for (size_t m = 0; m < members; ++m) {
        sources.push_back(testing::RandomValues(random, r.dtype, count));
      }
      const Bytes expected = testing::ReferenceFold(r, sources);
      const int in_place = static_cast<int>(random() % (members + 1)) - 1;
      for (const FoldKernels* kernels : AvailableFoldKernels()) {
        for (size_t shift : {size_t{0}, size_t{1}}) {
          ASSERT_EQ(RunFold(*kernels, r, sources, in_place, shift), expected)
              << kernels->name << ": " << Describe(r) << ", " << count << " elements, " << members
              << " sources, in place of " << in_place;
        }
      }
    }
  }
}

TEST(FoldTest, ResultsOfAnotherTypeAreConvertedLast) {
  std::mt19937_64 random(9);
  for (Reduction r : AllReductions()) {
    const bool half = r.dtype == DataType::kFloat16 || r.dtype == DataType::kBfloat16;
    if (!half && r.dtype != DataType::kFloat32 && r.dtype != DataType::kFloat64) continue;
    for (DataType result : half ? std::array{DataType::kFloat32, DataType::kFloat64}
                                : std::array{DataType::kFloat16, DataType::kBfloat16}) {
      for (int64_t count : {0, 1, 9, 63, 2049, 5000}) {
        const size_t members = 1 + random() % 4;
        r.divisor = static_cast<int64_t>(members);
        std::vector<Bytes> sources;
        std::vector<const std::byte*> pointers;
        for (size_t m = 0; m < members; ++m) {
          // Only the NaN that arithmetic produces: a conversion of other payloads depends on the
          // processor.
          const Bytes values = testing::RandomValues(random, r.dtype, count);
          const Reduction larger = {.dtype = r.dtype, .op = ReduceOp::kMax};
          sources.push_back(testing::ReferenceFold(larger, {values, values}));
        }
        for (const Bytes& source : sources) pointers.push_back(source.data());
        const Bytes expected =
            testing::ReferenceConvert(r.dtype, result, testing::ReferenceFold(r, sources));
        r.result = result;
        for (const FoldKernels* kernels : AvailableFoldKernels()) {
          Bytes got(expected.size());
          FoldWith(*kernels, r, got.data(), pointers, count);
          ASSERT_EQ(got, expected) << kernels->name << ": " << Describe(r) << " to " << Name(result)
                                   << ", " << count << " elements, " << members;
        }
        r.result.reset();
      }
    }
  }
}

TEST(FoldTest, LargeBlocksInPlaceOfEachSource) {
  std::mt19937_64 random(8);
  const Reduction r = {.dtype = DataType::kBfloat16, .op = ReduceOp::kAverage, .divisor = 4};
  std::vector<Bytes> sources;
  for (int m = 0; m < 4; ++m) sources.push_back(testing::RandomValues(random, r.dtype, 10'000));
  const Bytes expected = testing::ReferenceFold(r, sources);
  for (const FoldKernels* kernels : AvailableFoldKernels()) {
    for (int in_place = -1; in_place < 4; ++in_place) {
      EXPECT_EQ(RunFold(*kernels, r, sources, in_place, 0), expected) << kernels->name;
    }
  }
}

TEST(FoldTest, HalfTypesRoundToNearestEvenEverywhere) {
  // Floats of the whole range, and around every boundary between two 16-bit floats.
  std::vector<uint32_t> floats;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 7919) {
    floats.push_back(static_cast<uint32_t>(bits));
  }
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const auto value =
        std::bit_cast<uint32_t>(testing::DecodeHalf(static_cast<uint16_t>(half), 10, -14));
    for (uint32_t ulps : {0u, 0xfffu, 0x1000u, 0x1001u}) floats.push_back(value + ulps);
    for (uint32_t ulps : {0u, 0x7fffu, 0x8000u, 0x8001u}) floats.push_back((half << 16) + ulps);
  }
  const auto count = static_cast<int64_t>(floats.size());
  const auto* src = reinterpret_cast<const std::byte*>(floats.data());
  for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const FoldKernels* kernels : AvailableFoldKernels()) {
      const FoldKernels::Row& row = kernels->rows[static_cast<size_t>(dtype)];
      std::vector<uint16_t> halves(floats.size());
      row.narrow(reinterpret_cast<std::byte*>(halves.data()), src, count);
      for (size_t i = 0; i < floats.size(); ++i) {
        if ((floats[i] & 0x7fffffff) > 0x7f800000) continue;  // tested with arithmetic, below
        std::byte expected[2];
        const auto value = std::bit_cast<float>(floats[i]);
        dtype == DataType::kFloat16 ? testing::Float16::Store(expected, value)
                                    : testing::Bfloat16::Store(expected, value);
        ASSERT_EQ(halves[i], testing::Plain<uint16_t>::Load(expected))
            << kernels->name << " " << Name(dtype) << " of bits " << std::hex << floats[i];
      }
    }
  }
}

TEST(FoldTest, WideningIsExactForEveryBitPattern) {
  std::vector<uint16_t> halves(0x10000);
  for (uint32_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for (const FoldKernels* kernels : AvailableFoldKernels()) {
    std::vector<float> floats(halves.size());
    kernels->rows[static_cast<size_t>(DataType::kFloat16)].widen(
        reinterpret_cast<std::byte*>(floats.data()),
        reinterpret_cast<const std::byte*>(halves.data()), 0x10000);
    for (uint32_t i = 0; i < halves.size(); ++i) {
      const float expected = testing::DecodeHalf(halves[i], 10, -14);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(floats[i])) << kernels->name << " " << i;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(expected))
            << kernels->name << " " << i;
      }
    }
  }
}

template <typename T>
T FoldTwo(const Reduction& r, T a, T b) {
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(&a),
                                reinterpret_cast<const std::byte*>(&b)};
  T result;
  Fold(r, reinterpret_cast<std::byte*>(&result), sources, 1);
  return result;
}

TEST(FoldTest, IntegersWrapAndTheirAverageGoesTowardsZero) {
  EXPECT_EQ(FoldTwo<int8_t>({.dtype = DataType::kInt8}, 100, 100), -56);
  const Reduction average = {.dtype = DataType::kInt32, .op = ReduceOp::kAverage, .divisor = 2};
  EXPECT_EQ(FoldTwo<int32_t>(average, -3, 0), -1);
  EXPECT_EQ(FoldTwo<int32_t>(average, 3, 0), 1);
}

TEST(FoldTest, ScaledIntegersSaturate) {
  const Reduction r = {.dtype = DataType::kInt64, .postscale = 1e30};
  EXPECT_EQ(FoldTwo<int64_t>(r, 1, 1), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(FoldTwo<int64_t>(r, -1, -1), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(FoldTwo<uint8_t>({.dtype = DataType::kUint8, .postscale = -1.0}, 1, 1), 0);
}

TEST(FoldTest, NanSpreadsThroughMinAndMaxInEitherPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const Reduction r = {.dtype = DataType::kFloat32, .op = op};
    EXPECT_TRUE(std::isnan(FoldTwo<float>(r, nan, 1)));
    EXPECT_TRUE(std::isnan(FoldTwo<float>(r, 1, nan)));
  }
}

TEST(FoldTest, EveryNanIsTheSameNan) {
  const auto odd_nan = std::bit_cast<float>(0xffc01234u);
  const float infinity = std::numeric_limits<float>::infinity();
  const Reduction sum = {.dtype = DataType::kFloat32};
  EXPECT_EQ(std::bit_cast<uint32_t>(FoldTwo<float>(sum, odd_nan, 1)), 0x7fc00000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(FoldTwo<float>(sum, infinity, -infinity)), 0x7fc00000u);
}

TEST(FoldTest, UndefinedReductionsAreRefused) {
  EXPECT_FALSE(CheckReduction({.dtype = DataType::kBool, .op = ReduceOp::kAverage}).ok());
  EXPECT_FALSE(CheckReduction({.dtype = DataType::kComplex64, .op = ReduceOp::kMin}).ok());
  EXPECT_FALSE(CheckReduction({.dtype = DataType::kComplex128, .op = ReduceOp::kMax}).ok());
  EXPECT_FALSE(CheckReduction({.dtype = DataType::kFloat32, .op = ReduceOp::kAdasum}).ok());
  EXPECT_FALSE(CheckReduction({.op = ReduceOp::kAverage, .divisor = 0}).ok());
  EXPECT_TRUE(CheckReduction({.dtype = DataType::kBool, .op = ReduceOp::kSum}).ok());
}

TEST(FoldTest, PlainIsAlwaysAvailable) {
  EXPECT_EQ(AvailableFoldKernels().back()->name, "plain");
  EXPECT_EQ(AvailableFoldKernels().front()->name, FoldKernelName());
}

#if defined(__aarch64__)
TEST(FoldTest, Arm64HasNeon) { EXPECT_EQ(FoldKernelName(), "neon"); }
#endif

}  // namespace
}  // namespace horoscale
