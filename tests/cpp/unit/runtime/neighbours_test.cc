#include "runtime/neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace horoscale {
namespace {

using ::testing::HasSubstr;

int Lowest(const std::vector<std::string>& cards, int rank, std::string* why_not) {
  return Neighbours::FindLowest(cards, rank, Deadline::After(20), why_not);
}

TEST(NeighboursTest, RanksOfOneNameThatReachEachOtherShareMemory) {
  const Neighbours first = Neighbours::Create("a").TakeValue();
  const Neighbours second = Neighbours::Create("b").TakeValue();
  const Neighbours third = Neighbours::Create("a").TakeValue();
  const std::vector<std::string> cards = {first.card(), second.card(), third.card()};
  std::string why_not;
  EXPECT_EQ(Lowest(cards, 0, &why_not), 0);
  EXPECT_EQ(Lowest(cards, 1, &why_not), 1);
  EXPECT_EQ(Lowest(cards, 2, &why_not), 0);
  EXPECT_EQ(why_not, "");
}

TEST(NeighboursTest, ThoseThatCannotBeReachedAreElsewhere) {
  std::optional<Neighbours> gone = Neighbours::Create("a").TakeValue();
  const Neighbours second = Neighbours::Create("a").TakeValue();
  const Neighbours third = Neighbours::Create("a").TakeValue();
  const std::vector<std::string> cards = {gone->card(), second.card(), third.card()};
  gone.reset();
  std::string why_not;
  EXPECT_EQ(Lowest(cards, 2, &why_not), 1);
  EXPECT_EQ(why_not, "") << "the first of that host says it";
  EXPECT_EQ(Lowest(cards, 1, &why_not), 1);
  EXPECT_THAT(why_not, HasSubstr("rank 0 and rank 1 give their hosts the same name, \"a\""));
}

TEST(NeighboursTest, HostsAreThoseOfTheLowestRanks) {
  const std::vector<std::string> cards = {"x\na", "y\na", "z\na", "v\nb"};
  const std::vector<int> lowest = {0, 1, 0, 3};
  const auto hosts = HostsOf(cards, lowest);
  ASSERT_TRUE(hosts.ok());
  EXPECT_EQ((*hosts)[0], (*hosts)[2]);
  EXPECT_NE((*hosts)[0], (*hosts)[1]);
  EXPECT_NE((*hosts)[1], (*hosts)[3]);
}

TEST(NeighboursTest, AnswersThatCannotBeAreRefused) {
  const std::vector<std::string> cards = {"x\na", "y\na", "z\na"};
  for (const std::vector<int>& lowest :
       {std::vector{0, 0, 1}, std::vector{1, 1, 1}, std::vector{0, -1, 0}, std::vector{0, 1, 7}}) {
    EXPECT_EQ(HostsOf(cards, lowest).status().code(), StatusCode::kProtocol);
  }
}

}  // namespace
}  // namespace horoscale
