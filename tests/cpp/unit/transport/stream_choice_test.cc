#include "transport/tcp/stream_choice.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <vector>

namespace horoscale {
namespace {

TEST(StreamChoiceTest, OneStreamIsUsedWhereTheNetworkIsSlow) {
  StreamChoice choice(4, false);
  EXPECT_EQ(choice.used(), 4u);
  EXPECT_FALSE(choice.IsDue(1000));
  EXPECT_TRUE(choice.IsDue(1 << 20));
  choice.OnRates(std::array{0.0, 0.0, 0.0, 0.0});
  EXPECT_EQ(choice.used(), 4u) << "nothing is known";
  choice.OnRates(std::array{25e6, 20e6, 0.0, 25e6});
  EXPECT_EQ(choice.used(), 1u);
  choice.OnRates(std::array{250e6});
  EXPECT_EQ(choice.used(), 1u);
  choice.OnRates(std::array{1e9});
  EXPECT_EQ(choice.used(), 4u);
}

// Four streams together carry no more than one, so each falls below the rate that justifies
// several.
TEST(StreamChoiceTest, ANetworkThatStreamsShareIsNotTriedForEver) {
  StreamChoice choice(4, false);
  size_t tries = 0;
  for (int look = 0; look < 10'000; ++look) {
    const size_t before = choice.used();
    const std::vector<double> rates(before, 600e6 / static_cast<double>(before));
    choice.OnRates(rates);
    if (before == 1 && choice.used() > 1) ++tries;
  }
  EXPECT_GT(tries, 1u);
  EXPECT_LT(tries, 25u);
}

TEST(StreamChoiceTest, ANetworkThatLimitsEachStreamGetsAllOfThemAgain) {
  StreamChoice choice(4, false);
  const std::vector<double> limited(4, 600e6);
  for (int disturbance = 0; disturbance < 20; ++disturbance) {
    choice.OnRates(std::array{50e6, 50e6, 50e6, 50e6});
    EXPECT_EQ(choice.used(), 1u);
    int looks = 0;
    for (; choice.used() == 1 && looks < 2000; ++looks) choice.OnRates({limited.data(), 1});
    EXPECT_EQ(choice.used(), 4u) << "after " << looks << " looks";
    choice.OnRates(limited);
    EXPECT_EQ(choice.used(), 4u);
  }
}

TEST(StreamChoiceTest, OneStreamIsUsedWhereItIsAsFastAsMemory) {
  StreamChoice choice(4, false);
  choice.OnRates(std::array{4e9, 3e9, 4e9, 5e9});
  EXPECT_EQ(choice.used(), 1u);
  for (int look = 0; look < 10; ++look) choice.OnRates(std::array{5e9});
  EXPECT_EQ(choice.used(), 1u);
  choice.OnRates(std::array{1e9});
  EXPECT_EQ(choice.used(), 4u) << "it may be limited";
}

TEST(StreamChoiceTest, AllAreUsedWhereThatWasAskedFor) {
  StreamChoice choice(4, true);
  EXPECT_FALSE(choice.IsDue(100 << 20));
  EXPECT_EQ(choice.used(), 4u);
}

}  // namespace
}  // namespace horoscale
