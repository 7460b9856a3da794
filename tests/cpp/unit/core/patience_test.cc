#include "core/patience.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

constexpr double kBandwidth = 12.5e6;

TEST(PatienceTest, WaitsTwiceAsLongAfterEachFailure) {
  Patience patience;
  uint64_t step = 100;
  for (int expected = Patience::kLeast; expected < Patience::kMost; expected *= 2) {
    EXPECT_EQ(patience.Steps(kBandwidth), expected);
    patience.OnLess(step);
    patience.OnMore(step + 2, kBandwidth);
    step += 200;
  }
  patience.OnLess(step);
  patience.OnMore(step + 2, kBandwidth);
  EXPECT_EQ(patience.Steps(kBandwidth), Patience::kMost);
}

TEST(PatienceTest, AChoiceThatLastedWasNoFailure) {
  Patience patience;
  patience.OnLess(10);
  patience.OnMore(12, kBandwidth);
  EXPECT_GT(patience.Steps(kBandwidth), Patience::kLeast);
  patience.OnLess(50);
  patience.OnMore(100, kBandwidth);
  EXPECT_EQ(patience.Steps(kBandwidth), Patience::kLeast);
  patience.OnMore(101, kBandwidth);
  EXPECT_EQ(patience.Steps(kBandwidth), Patience::kLeast) << "it was not milder before";
}

TEST(PatienceTest, AnotherNetworkStartsAgain) {
  for (double factor : {0.4, 2.5}) {
    Patience patience;
    patience.OnLess(10);
    patience.OnMore(12, kBandwidth);
    EXPECT_GT(patience.Steps(1.2 * kBandwidth), Patience::kLeast);
    EXPECT_EQ(patience.Steps(factor * kBandwidth), Patience::kLeast);
  }
}

}  // namespace
}  // namespace horoscale
