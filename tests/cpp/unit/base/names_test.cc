#include "base/names.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

using Names = std::vector<std::string>;

TEST(Names, StandBetweenCommas) {
  EXPECT_EQ(SplitNames("eth0"), Names({"eth0"}));
  EXPECT_EQ(SplitNames("eth0,ib0,lo"), Names({"eth0", "ib0", "lo"}));
}

TEST(Names, AreNeverEmpty) {
  EXPECT_EQ(SplitNames(""), Names());
  EXPECT_EQ(SplitNames(","), Names());
  EXPECT_EQ(SplitNames(",eth0,,ib0,"), Names({"eth0", "ib0"}));
}

}  // namespace
}  // namespace horoscale
