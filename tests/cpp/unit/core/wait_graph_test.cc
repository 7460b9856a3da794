// Which ranks are reported to wait for which, and which are not.
#include "core/wait_graph.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace horoscale {
namespace {

constexpr double kPeriod = 10;

// A rank's thread has been blocked for the period.
void Block(WaitGraph& graph, int rank, uint32_t set, const std::string& operation, double since,
           double now) {
  graph.Add(rank, set, set, {operation, static_cast<uint64_t>((now - since) * 1000), {}}, now);
}

void Miss(WaitGraph& graph, uint32_t set, const std::string& operation, std::vector<int> ranks,
          double since, double now) {
  const auto waited = static_cast<uint64_t>((now - since) * 1000);
  graph.Add(0, set, set, {operation, waited, std::move(ranks)}, now);
}

TEST(WaitGraph, CrossedCallsOnTwoSetsAreNamedOnce) {
  WaitGraph graph(kPeriod);
  Block(graph, 0, 1, "allreduce \"x\"", 100, 111);
  Miss(graph, 1, "allreduce \"x\"", {1}, 100, 110);
  EXPECT_FALSE(graph.TakeCircle(111));
  Block(graph, 1, 2, "broadcast \"y\"", 101, 112);
  Miss(graph, 2, "broadcast \"y\"", {0}, 101, 111);
  const auto circle = graph.TakeCircle(112);
  ASSERT_TRUE(circle);
  EXPECT_NE(circle->find(
                "rank 0 has been blocked in allreduce \"x\" on process set 1 for 12 s, "
                "waiting for rank 1; rank 1 has been blocked in broadcast \"y\" on process set 2 "
                "for 11 s, waiting for rank 0"),
            std::string::npos)
      << *circle;
  Block(graph, 1, 2, "broadcast \"y\"", 101, 113);
  EXPECT_FALSE(graph.TakeCircle(113)) << "told twice within a period";
  Block(graph, 0, 1, "allreduce \"x\"", 100, 121);
  Block(graph, 1, 2, "broadcast \"y\"", 101, 122);
  Miss(graph, 1, "allreduce \"x\"", {1}, 100, 120);
  Miss(graph, 2, "broadcast \"y\"", {0}, 101, 121);
  EXPECT_TRUE(graph.TakeCircle(123)) << "and again after it";
}

TEST(WaitGraph, ACircleOfThreeRanksOnThreeSetsIsFound) {
  WaitGraph graph(kPeriod);
  for (int rank = 0; rank < 3; ++rank) {
    const auto set = static_cast<uint32_t>(rank + 1);
    Block(graph, rank, set, "allreduce \"a\"", 100 + rank, 115);
    Miss(graph, set, "allreduce \"a\"", {(rank + 1) % 3}, 100 + rank, 115);
  }
  const auto circle = graph.TakeCircle(115);
  ASSERT_TRUE(circle);
  for (const char* set : {"process set 1", "process set 2", "process set 3"}) {
    EXPECT_NE(circle->find(set), std::string::npos) << *circle;
  }
}

void MissOneOf(WaitGraph& graph, int rank, std::vector<int> ranks, double since, double now) {
  const auto waited = static_cast<uint64_t>((now - since) * 1000);
  graph.Add(rank, 0, 0, {"recv from any rank, tag 4", waited, std::move(ranks), true}, now);
}

// Rank 0 receives from any rank; rank 1 from rank 2, and rank 2 from rank 0.
TEST(WaitGraph, AReceiveOfAnyRankIsStuckWhenAllOthersWaitForIt) {
  WaitGraph graph(kPeriod);
  MissOneOf(graph, 0, {1, 2}, 100, 111);
  Block(graph, 1, 0, "recv from rank 2, tag 1", 101, 112);
  Miss(graph, 0, "recv from rank 2, tag 1", {2}, 101, 112);
  EXPECT_FALSE(graph.TakeCircle(112)) << "rank 2 can still send";
  Block(graph, 2, 0, "recv from rank 0, tag 2", 102, 113);
  Miss(graph, 0, "recv from rank 0, tag 2", {0}, 102, 113);
  const auto knot = graph.TakeCircle(113);
  ASSERT_TRUE(knot);
  EXPECT_NE(
      knot->find("rank 0 has been blocked in recv from any rank, tag 4 on process set 0 for 13 s, "
                 "waiting for one of ranks 1 and 2; rank 1 has been blocked in recv from rank 2"),
      std::string::npos)
      << *knot;
  MissOneOf(graph, 0, {1, 2}, 100, 114);
  EXPECT_FALSE(graph.TakeCircle(114)) << "told twice within a period";
}

TEST(WaitGraph, AReceiveOfAnyRankThatOneCanServeIsNoCircle) {
  WaitGraph graph(kPeriod);
  for (const int rank : {0, 1}) MissOneOf(graph, rank, {1 - rank, 2}, 100, 111);
  EXPECT_FALSE(graph.TakeCircle(111)) << "rank 2 is not blocked";
  MissOneOf(graph, 2, {0, 1}, 111, 121);
  for (const int rank : {0, 1}) MissOneOf(graph, rank, {1 - rank, 2}, 100, 122);
  EXPECT_TRUE(graph.TakeCircle(122));
}

TEST(WaitGraph, ACircleBesideAReceiveOfAnyRankIsTheirOwn) {
  WaitGraph graph(kPeriod);
  MissOneOf(graph, 0, {1, 2, 3}, 100, 111);
  for (const int rank : {1, 2}) {
    const std::string name = "recv from rank " + std::to_string(3 - rank) + ", tag 1";
    Block(graph, rank, 0, name, 100, 111);
    Miss(graph, 0, name, {3 - rank}, 100, 111);
  }
  const auto circle = graph.TakeCircle(111);
  ASSERT_TRUE(circle);
  EXPECT_EQ(circle->find("rank 0"), std::string::npos) << *circle;
  EXPECT_FALSE(graph.TakeCircle(111));
}

TEST(WaitGraph, AMissedRankThatIsNotBlockedIsNoCircle) {
  WaitGraph graph(kPeriod);
  Block(graph, 0, 1, "x", 100, 110);
  Miss(graph, 1, "x", {1}, 100, 110);
  // It submitted x asynchronously on set 2 and is busy elsewhere.
  Miss(graph, 2, "y", {0}, 100, 110);
  EXPECT_FALSE(graph.TakeCircle(111));
}

TEST(WaitGraph, WaitsThatFollowEachOtherAreNoCircle) {
  WaitGraph graph(kPeriod);
  Block(graph, 0, 1, "x", 100, 110);
  Miss(graph, 1, "x", {1}, 100, 110);
  // Rank 1 submitted x after that, and only then blocked elsewhere.
  Block(graph, 1, 2, "y", 110.5, 121);
  Miss(graph, 2, "y", {0}, 110.5, 121);
  EXPECT_FALSE(graph.TakeCircle(121));
}

TEST(WaitGraph, StatementsThatAreNotRepeatedAreForgotten) {
  WaitGraph graph(kPeriod);
  Block(graph, 0, 1, "x", 100, 110);
  Miss(graph, 1, "x", {1}, 100, 110);
  Block(graph, 1, 2, "y", 105, 140);
  Miss(graph, 2, "y", {0}, 105, 140);
  EXPECT_FALSE(graph.TakeCircle(140));
}

TEST(WaitGraph, ABarrierThatManyRanksWaitAtIsNoCircle) {
  WaitGraph graph(kPeriod);
  for (int rank = 0; rank < 2000; ++rank) {
    if (rank != 7) Block(graph, rank, 0, "barrier", 100, 111);
  }
  Miss(graph, 0, "barrier", {7}, 100, 110);
  EXPECT_FALSE(graph.TakeCircle(111));
}

}  // namespace
}  // namespace horoscale
