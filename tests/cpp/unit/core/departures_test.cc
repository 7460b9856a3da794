// Which rank is named when ranks end one after the other.
#include "core/departures.h"

#include <gtest/gtest.h>

#include <vector>

namespace horoscale {
namespace {

const std::vector<int> kAll = {0, 1, 2, 3};
const Status kEnded(StatusCode::kRankFailed, "its process ended");

Goodbye BecauseOf(int culprit, const std::string& message) {
  Goodbye goodbye;
  goodbye.clean = false;
  goodbye.message = message;
  goodbye.ranks = {culprit};
  goodbye.executed = {{0, 0, 17}};
  return goodbye;
}

TEST(Departures, ARankWithoutAGoodbyeFailed) {
  Departures departures;
  EXPECT_EQ(departures.OnLost(2, kEnded).message(), "rank 2 failed: its process ended");
  const auto verdict = departures.ForSet(2, 0, 0, kAll);
  EXPECT_TRUE(verdict.at_once);
  EXPECT_EQ(verdict.cause.detail().ranks, std::vector<int>{2});
}

TEST(Departures, ARankThatLeftInGoodOrderTakesPartInWhatItExecuted) {
  Departures departures;
  Goodbye goodbye;
  goodbye.executed = {{0, 0, 5}, {3, 8, 9}};
  departures.OnGoodbye(1, goodbye);
  EXPECT_EQ(departures.OnLost(1, kEnded).message(), "rank 1 left the job");
  const auto verdict = departures.ForSet(1, 3, 8, kAll);
  EXPECT_FALSE(verdict.at_once);
  EXPECT_EQ(verdict.executed.sequence, 9u);
  EXPECT_EQ(departures.ForSet(1, 3, 7, kAll).executed.sequence, 0u) << "another incarnation";
  EXPECT_TRUE(departures.MakeGoodbye(0, "", Status::Ok()).clean) << "nobody has failed";
}

TEST(Departures, AVictimNamesTheFirstCauseAndNotItself) {
  Departures departures;
  departures.OnGoodbye(1, BecauseOf(2, "rank 2 failed: its process ended"));
  const Status& cause = departures.OnLost(1, kEnded);
  EXPECT_EQ(cause.message(), "rank 2 failed: its process ended");
  EXPECT_EQ(cause.detail().ranks, std::vector<int>{2});
  const auto with_culprit = departures.ForSet(1, 0, 0, kAll);
  EXPECT_EQ(with_culprit.cause.detail().ranks, std::vector<int>{2});
  EXPECT_EQ(with_culprit.executed.sequence, 17u);
  const auto without = departures.ForSet(1, 5, 6, std::vector<int>{1, 3});
  EXPECT_EQ(without.cause.message(), "rank 1 left the job");
}

TEST(Departures, TheFirstCauseIsPassedOn) {
  Departures departures;
  departures.OnLost(2, kEnded);
  const Goodbye goodbye = departures.MakeGoodbye(3, "RankFailedError: rank 2 failed", Status::Ok());
  EXPECT_FALSE(goodbye.clean);
  EXPECT_EQ(goodbye.ranks, std::vector<int>{2});
}

TEST(Departures, WhoLeftInGoodOrderIsTheCauseOfWhatItWasNeededFor) {
  Departures departures;
  departures.OnGoodbye(1, Goodbye());
  const Status left = departures.OnLost(1, kEnded);
  EXPECT_EQ(departures.MakeGoodbye(3, "RankFailedError: rank 1 left", left).ranks,
            std::vector<int>{1});
  EXPECT_EQ(departures.MakeGoodbye(3, "ValueError", Status::Ok()).ranks, std::vector<int>{3});
  EXPECT_TRUE(departures.MakeGoodbye(3, "", left).clean) << "it made nothing of it";
}

}  // namespace
}  // namespace horoscale
