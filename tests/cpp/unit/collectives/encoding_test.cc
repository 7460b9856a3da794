// Encodings between hosts: every instruction set against the portable code, the error bounds, and
// arbitrary bytes.
#include "collectives/encoding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "collectives/encoding_kernels.h"

namespace horoscale {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr EncodingKind kBlockKinds[] = {EncodingKind::kInt8, EncodingKind::kInt4,
                                        EncodingKind::kOneBit};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Encoding> Encodings() {
  return {{EncodingKind::kInt8},      {EncodingKind::kInt4},     {EncodingKind::kOneBit},
          {EncodingKind::kTopK, 1},   {EncodingKind::kTopK, 41}, {EncodingKind::kTopK, 1000},
          {EncodingKind::kTopK, 4096}};
}
const std::vector<int64_t> kCounts = {1, 2, 7, 63, 64, 65, 127, 128, 1000, 1024, 4095, 4096};

Floats Gradients(std::mt19937_64& random, int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal;
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = scale * normal(random) * std::exp(2 * normal(random));
  return values;
}

// Values of every float32 magnitude, and all that are not finite.
Floats AnyFloats(std::mt19937_64& random, int64_t count, bool finite) {
  Floats values(static_cast<size_t>(count));
  for (float& value : values) {
    do {
      const auto bits = static_cast<uint32_t>(random());
      std::memcpy(&value, &bits, sizeof(value));
    } while (finite && !std::isfinite(value));
    if (random() % 8 == 0) value = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  return values;
}

Bytes Encoded(const Encoding& encoding, const Floats& values, Floats* residuals) {
  const auto count = static_cast<int64_t>(values.size());
  Bytes bytes(static_cast<size_t>(EncodedBytes(encoding, count)));
  Encode(encoding, bytes.data(), values.data(), residuals == nullptr ? nullptr : residuals->data(),
         count);
  return bytes;
}

Floats Decoded(const Encoding& encoding, const Bytes& bytes, int64_t count) {
  Floats values(static_cast<size_t>(count), 77.0f);
  Decode(encoding, values.data(), bytes.data(), count);
  return values;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST(EncodingTest, CodesStandForEncodings) {
  for (const Encoding& encoding : Encodings()) {
    EXPECT_EQ(Encoding::FromCode(encoding.Code()), encoding);
    EXPECT_TRUE(encoding.IsLossy());
  }
  for (int64_t code : {-1, 7, 8, 255, 256, 259, 6, 6 + 256 * 4097, 7 + 256 * 65536}) {
    EXPECT_FALSE(Encoding::FromCode(code)) << code;
  }
  EXPECT_EQ(Encoding::FromCode(0), Encoding());
  EXPECT_EQ(Name(Encoding{EncodingKind::kTopK, 41}), "topk(41 of 4096)");
  const Encoding adaptive{EncodingKind::kAdaptive, 1000};
  EXPECT_EQ(Encoding::FromCode(adaptive.Code()), adaptive);
  EXPECT_DOUBLE_EQ(adaptive.MostError(), 0.1);
  EXPECT_EQ(Name(adaptive), "adaptive(0.1)");
}

TEST(EncodingTest, SizesAreWhatTheDocumentSays) {
  EXPECT_EQ(EncodedBytes({EncodingKind::kInt8}, 4096), 64 * 66);
  EXPECT_EQ(EncodedBytes({EncodingKind::kInt4}, 4096), 64 * 34);
  EXPECT_EQ(EncodedBytes({EncodingKind::kOneBit}, 4096), 64 * 10);
  EXPECT_EQ(EncodedBytes({EncodingKind::kTopK, 41}, 4096), 2 * 41 + (41 * 6 + 7) / 8 + 14);
}

TEST(EncodingTest, FamiliesGiveTheSameBits) {
  std::mt19937_64 random(1);
  for (const EncodingKernels* family : AvailableEncodingKernels()) {
    for (EncodingKind kind : kBlockKinds) {
      for (int64_t count : kCounts) {
        for (int form = 0; form < 3; ++form) {
          const Floats values =
              form == 0 ? Gradients(random, count) : AnyFloats(random, count, form == 1);
          Floats got_residuals = Gradients(random, count, 0.1f);
          Floats residuals = got_residuals;
          Bytes bytes(static_cast<size_t>(EncodedBytes({kind}, count)));
          Bytes got(bytes.size());
          const bool feedback = random() % 3 != 0;
          EncodeWith(kPlainEncodingKernels, kind, bytes.data(), values.data(),
                     feedback ? residuals.data() : nullptr, count);
          EncodeWith(*family, kind, got.data(), values.data(),
                     feedback ? got_residuals.data() : nullptr, count);
          ASSERT_TRUE(SameBits(got, bytes)) << family->name << " " << Name(Encoding{kind}) << count;
          ASSERT_TRUE(SameBits(got_residuals, residuals)) << family->name;
          for (std::byte& byte : bytes) {
            if (random() % 64 == 0) byte = static_cast<std::byte>(random());
          }
          for (bool add : {false, true}) {
            Floats decoded = AnyFloats(random, count, false);
            Floats got_decoded = decoded;
            DecodeWith(kPlainEncodingKernels, kind, decoded.data(), bytes.data(), count, add);
            DecodeWith(*family, kind, got_decoded.data(), bytes.data(), count, add);
            ASSERT_TRUE(SameBits(got_decoded, decoded)) << family->name << Name(Encoding{kind});
          }
        }
      }
    }
  }
}

// Exact: a residual is a difference of neighbors, which float32 computes without rounding. For 1
// bit, and for the largest values, the error is at most half a unit in the last place.
TEST(EncodingTest, WhatDecodesAndWhatIsLeftIsWhatWasThere) {
  std::mt19937_64 random(2);
  for (const Encoding& encoding : Encodings()) {
    for (int64_t count : kCounts) {
      const Floats values = Gradients(random, count);
      Floats residuals = Gradients(random, count, 0.1f);
      const Floats before = residuals;
      const Floats decoded = Decoded(encoding, Encoded(encoding, values, &residuals), count);
      for (size_t i = 0; i < values.size(); ++i) {
        const float sum = values[i] + before[i];
        const double left = double{sum} - double{decoded[i]};
        ASSERT_LE(std::abs(left - double{residuals[i]}),
                  std::max(std::abs(sum), std::abs(decoded[i])) * 0x1p-23)
            << Name(encoding) << " " << count << " " << i;
      }
    }
  }
}

TEST(EncodingTest, ErrorsAreWithinHalfAStep) {
  std::mt19937_64 random(3);
  for (const auto& [kind, largest] :
       {std::pair(EncodingKind::kInt8, 127.0), std::pair(EncodingKind::kInt4, 7.0)}) {
    for (float scale : {1e-30f, 1e-3f, 1.0f, 1e30f}) {
      const Floats values = Gradients(random, 4096, scale);
      const Floats decoded = Decoded({kind}, Encoded({kind}, values, nullptr), 4096);
      for (size_t block = 0; block < values.size(); block += kBlockElements) {
        double most = 0;
        for (size_t i = block; i < block + kBlockElements; ++i) {
          most = std::max(most, std::abs(double{values[i]}));
        }
        const double half_step = most / largest / 2 * (1 + 0x1p-7) * (1 + 1e-5);
        for (size_t i = block; i < block + kBlockElements; ++i) {
          ASSERT_LE(std::abs(double{values[i]} - double{decoded[i]}), half_step);
        }
      }
    }
  }
}

TEST(EncodingTest, TheLargestAreSentAndOfEqualOnesTheFirst) {
  Floats values(100, 1.0f);
  values[40] = -8.0f;
  values[99] = 4.0f;
  const Encoding encoding{EncodingKind::kTopK, 160};  // 4 of 100
  const Floats decoded = Decoded(encoding, Encoded(encoding, values, nullptr), 100);
  Floats expected(100);
  expected[0] = expected[1] = 1.0f;
  expected[40] = -8.0f;
  expected[99] = 4.0f;
  EXPECT_EQ(decoded, expected);
}

TEST(EncodingTest, TheLargestAreThoseThatASortPutsFirst) {
  std::mt19937_64 random(7);
  for (int64_t kept : {1, 4, 41, 256, 257, 2000, 4096}) {
    for (int64_t count : kCounts) {
      for (int levels : {1, 2, 30, 1 << 20}) {  // few levels: many elements are equal
        Floats values(static_cast<size_t>(count));
        for (float& value : values) {
          const auto level = static_cast<float>(random() % static_cast<uint64_t>(levels));
          value = (random() % 2 == 0 ? 1.0f : -1.0f) * (1.0f + level);
        }
        std::vector<size_t> order(values.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
          return std::abs(values[a]) > std::abs(values[b]);
        });
        order.resize(static_cast<size_t>((kept * count + 4095) / 4096));
        Floats expected(values.size());
        for (size_t place : order) expected[place] = values[place];
        const Encoding encoding{EncodingKind::kTopK, static_cast<uint16_t>(kept)};
        const Floats decoded = Decoded(encoding, Encoded(encoding, values, nullptr), count);
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(decoded[i] != 0, expected[i] != 0) << kept << " of " << count << ": " << i;
          ASSERT_NEAR(decoded[i], expected[i], std::abs(expected[i]) * 0x1p-8);
        }
      }
    }
  }
}

TEST(EncodingTest, WhatIsNotFiniteIsToldAndLeavesResidualsAlone) {
  std::mt19937_64 random(4);
  for (const Encoding& encoding : Encodings()) {
    for (float bad : {kInfinity, -kInfinity, kNan}) {
      Floats values = Gradients(random, 4096);
      values[70] = bad;
      Floats residuals = Gradients(random, 4096, 0.1f);
      const Floats before = residuals;
      const Floats decoded = Decoded(encoding, Encoded(encoding, values, &residuals), 4096);
      EXPECT_FALSE(std::isfinite(decoded[70])) << Name(encoding);
      const bool all = encoding.kind == EncodingKind::kTopK;
      for (size_t i = all ? 0 : 64; i < (all ? 4096 : 128); ++i) ASSERT_EQ(residuals[i], before[i]);
      if (!all) {
        EXPECT_TRUE(std::isfinite(decoded[0]));
        EXPECT_NE(residuals[0], before[0]);
      }
    }
  }
}

TEST(EncodingTest, WhatIsLostComesLater) {
  std::mt19937_64 random(5);
  for (const Encoding& encoding : Encodings()) {
    if (encoding.parameter == 1) continue;  // where nothing is sent for thousands of steps
    const Floats values = Gradients(random, 4096);
    Floats residuals(4096);
    std::vector<double> delivered(4096);
    constexpr int kSteps = 400;
    for (int step = 0; step < kSteps; ++step) {
      const Floats decoded = Decoded(encoding, Encoded(encoding, values, &residuals), 4096);
      for (size_t i = 0; i < 4096; ++i) delivered[i] += double{decoded[i]};
    }
    double error = 0;
    double size = 0;
    for (size_t i = 0; i < 4096; ++i) {
      error += std::pow(delivered[i] / kSteps - double{values[i]}, 2);
      size += std::pow(double{values[i]}, 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.15) << Name(encoding);
  }
}

TEST(EncodingTest, AnyBytesDecode) {
  std::mt19937_64 random(6);
  for (const Encoding& encoding : Encodings()) {
    for (int64_t count : kCounts) {
      for (int round = 0; round < 20; ++round) {
        Bytes bytes(static_cast<size_t>(EncodedBytes(encoding, count)));
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(round == 0 ? 255 : random());
        EXPECT_EQ(Decoded(encoding, bytes, count).size(), static_cast<size_t>(count));
      }
    }
  }
}

}  // namespace
}  // namespace horoscale
