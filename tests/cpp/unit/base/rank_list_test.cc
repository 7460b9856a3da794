#include "base/rank_list.h"

#include <gtest/gtest.h>

#include <vector>

namespace horoscale {
namespace {

TEST(RankList, ReadsAsInASentence) {
  const auto list = [](std::vector<int> ranks) { return RankList(ranks); };
  EXPECT_EQ(list({}), "no rank");
  EXPECT_EQ(list({3}), "rank 3");
  EXPECT_EQ(list({3, 4}), "ranks 3 and 4");
  EXPECT_EQ(list({0, 1, 2}), "ranks 0-2");
  EXPECT_EQ(list({0, 2, 3, 4, 5, 9}), "ranks 0, 2-5 and 9");
  EXPECT_EQ(list({0, 1, 3, 4, 5}), "ranks 0, 1 and 3-5");
}

TEST(RankList, OfManyIsCut) {
  std::vector<int> even;
  for (int rank = 0; rank < 1000; rank += 2) even.push_back(rank);
  const std::string text = RankList(even);
  EXPECT_LT(text.size(), 200u);
  EXPECT_TRUE(text.ends_with(", …")) << text;
}

}  // namespace
}  // namespace horoscale
