// AdaptedTensors: what adaptive operations were sent in, and copies of it for the metrics.
#include "runtime/adapted_tensors.h"

#include <gmock/gmock.h>

#include <string>

namespace horoscale {
namespace {

constexpr Encoding kInt8{EncodingKind::kInt8};
constexpr Encoding kInt4{EncodingKind::kInt4};

TEST(AdaptedTensors, CountsBytesAndChangesOfTheEncoding) {
  AdaptedTensors adapted;
  adapted.Count("a", kInt8, 256, 66);
  adapted.Count("b", {}, 64, 64);
  adapted.Count("a", kInt8, 256, 66);
  adapted.Count("a", kInt4, 256, 34);
  ASSERT_EQ(adapted.tensors().size(), 2u);
  const AdaptedTensor& first = adapted.tensors()[0];
  EXPECT_EQ(*first.name, "a");
  EXPECT_EQ(first.encoding, kInt4);
  EXPECT_EQ(first.changes, 1u);
  EXPECT_EQ(first.bytes_before, 768u);
  EXPECT_EQ(first.bytes_after, 166u);
  EXPECT_EQ(adapted.tensors()[1].changes, 0u);
}

TEST(AdaptedTensors, ACopyStaysAsItIsAndOutlivesTheOriginal) {
  AdaptedTensors copy;
  {
    AdaptedTensors adapted;
    adapted.Count("first", kInt8, 256, 66);
    copy = adapted;
    for (int i = 0; i < 1000; ++i) adapted.Count("more " + std::to_string(i), kInt8, 256, 66);
    adapted.Count("first", kInt4, 256, 34);
  }
  ASSERT_EQ(copy.tensors().size(), 1u);
  EXPECT_EQ(*copy.tensors()[0].name, "first");
  EXPECT_EQ(copy.tensors()[0].encoding, kInt8);
}

TEST(AdaptedTensors, KeepsNoMoreNamesThanItMay) {
  AdaptedTensors adapted;
  adapted.Count("", kInt8, 256, 66);
  for (size_t i = 0; i <= AdaptedTensors::kMost; ++i) {
    adapted.Count("tensor " + std::to_string(i), kInt8, 256, 66);
  }
  ASSERT_EQ(adapted.tensors().size(), AdaptedTensors::kMost);
  adapted.Count("tensor 0", kInt8, 256, 66);
  EXPECT_EQ(adapted.tensors()[0].bytes_before, 512u);
}

}  // namespace
}  // namespace horoscale
