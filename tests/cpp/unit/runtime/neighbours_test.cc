#include "runtime/neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace horoscale {
namespace {

using ::testing::HasSubstr;

int Lowest(const std::map<int, std::string>& cards, int rank, std::string* why_not) {
  return Neighbours::FindLowest(cards, rank, "a", Deadline::After(20), why_not);
}

TEST(NeighboursTest, RanksOfOneNameThatReachEachOtherShareMemory) {
  const Neighbours first = Neighbours::Create().TakeValue();
  const Neighbours third = Neighbours::Create().TakeValue();
  const std::map<int, std::string> cards = {{0, first.card()}, {2, third.card()}};
  std::string why_not;
  EXPECT_EQ(Lowest(cards, 0, &why_not), 0);
  EXPECT_EQ(Lowest(cards, 2, &why_not), 0);
  EXPECT_EQ(Lowest({{1, "it is alone"}}, 1, &why_not), 1);
  EXPECT_EQ(why_not, "");
}

TEST(NeighboursTest, ThoseThatCannotBeReachedAreElsewhere) {
  std::optional<Neighbours> gone = Neighbours::Create().TakeValue();
  const Neighbours second = Neighbours::Create().TakeValue();
  const Neighbours third = Neighbours::Create().TakeValue();
  const std::map<int, std::string> cards = {
      {0, gone->card()}, {1, second.card()}, {2, third.card()}};
  gone.reset();
  std::string why_not;
  EXPECT_EQ(Lowest(cards, 2, &why_not), 1);
  EXPECT_EQ(why_not, "") << "the first of that host says it";
  EXPECT_EQ(Lowest(cards, 1, &why_not), 1);
  EXPECT_THAT(why_not, HasSubstr("rank 0 and rank 1 report the same host name, \"a\""));
}

TEST(NeighboursTest, HostsAreThoseOfTheLowestRanks) {
  const std::vector<int> lowest = {0, 1, 0, 3};
  const auto hosts = HostsOf(lowest);
  ASSERT_TRUE(hosts.ok());
  EXPECT_EQ((*hosts)[0], (*hosts)[2]);
  EXPECT_NE((*hosts)[0], (*hosts)[1]);
  EXPECT_NE((*hosts)[1], (*hosts)[3]);
}

TEST(NeighboursTest, AnswersThatCannotBeAreRefused) {
  for (const std::vector<int>& lowest :
       {std::vector{0, 0, 1}, std::vector{1, 1, 1}, std::vector{0, -1, 0}, std::vector{0, 1, 7}}) {
    EXPECT_EQ(HostsOf(lowest).status().code(), StatusCode::kProtocol);
  }
}

}  // namespace
}  // namespace horoscale
