#include "core/stall_watch.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

std::vector<UnitId> Units(const std::vector<StallWatch::Overdue>& overdue) {
  std::vector<UnitId> units;
  for (const auto& item : overdue) units.push_back(item.unit);
  return units;
}

TEST(StallWatch, SaysEachUnitOncePerPeriod) {
  StallWatch watch(10);
  watch.Add(3, {0, 0});
  watch.Add(5, {4, 4});
  EXPECT_TRUE(watch.TakeOverdue(9).empty());
  EXPECT_EQ(Units(watch.TakeOverdue(11)), std::vector<UnitId>{3});
  EXPECT_EQ(Units(watch.TakeOverdue(15)), std::vector<UnitId>{5});
  EXPECT_TRUE(watch.TakeOverdue(20).empty());
  const auto again = watch.TakeOverdue(21);
  ASSERT_EQ(Units(again), std::vector<UnitId>{3});
  EXPECT_EQ(again[0].seconds_waiting, 21);
}

TEST(StallWatch, ForgetsWhatIsReady) {
  StallWatch watch(10);
  watch.Add(1, {0, 0});
  watch.Add(2, {0, 0});
  watch.Remove(1);
  EXPECT_EQ(Units(watch.TakeOverdue(100)), std::vector<UnitId>{2});
}

TEST(StallWatch, TheClockOfWhatWaitedBeforeGoesOn) {
  StallWatch watch(10);
  watch.Add(1, {8, 8});
  watch.Add(2, {0, 7});
  EXPECT_TRUE(watch.TakeOverdue(16).empty());
  const auto overdue = watch.TakeOverdue(17);
  ASSERT_EQ(Units(overdue), std::vector<UnitId>{2});
  EXPECT_EQ(overdue[0].seconds_waiting, 17);
  EXPECT_EQ(Units(watch.TakeOverdue(18)), std::vector<UnitId>{1});
}

TEST(StallWatch, PeriodZeroWatchesNothing) {
  StallWatch watch(0);
  watch.Add(1, {0, 0});
  EXPECT_TRUE(watch.TakeOverdue(1e9).empty());
  watch.Remove(1);
}

}  // namespace
}  // namespace horoscale
