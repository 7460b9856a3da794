// The aggregator combines equal reports, holds those that nobody waits for, and keeps each member's
// order.

#include "core/aggregator.h"

#include <gtest/gtest.h>

#include "core/codec.h"
#include "core/coordinator.h"
#include "unit/core/core_cluster.h"

namespace horoscale {
namespace {

Report Hits(std::vector<uint32_t> slots, uint64_t applied = 0) {
  Report report;
  report.applied_sequence = applied;
  report.hits = std::move(slots);
  return report;
}

GroupReport From(std::vector<uint32_t> members, const Report& report) {
  return {{{std::move(members), report}}};
}

TEST(Aggregator, EqualReportsBecomeOne) {
  Aggregator group({4, 5, 6}, 1);
  for (uint32_t member : {6u, 4u}) {
    ASSERT_TRUE(group.OnReport(From({member}, Hits({1, 2})), 0).ok());
    EXPECT_EQ(group.TakeReport(0.5), std::nullopt);
  }
  ASSERT_TRUE(group.OnReport(From({5}, Hits({1, 2})), 0.9).ok());
  EXPECT_EQ(group.TakeReport(0.9), From({4, 5, 6}, Hits({1, 2})));
  EXPECT_EQ(group.TakeReport(99), std::nullopt);
  EXPECT_EQ(group.Deadline(), std::nullopt);
}

TEST(Aggregator, PatienceEndsWithTheOldestReport) {
  Aggregator group({0, 1}, 1);
  ASSERT_TRUE(group.OnReport(From({0}, Hits({1})), 5).ok());
  ASSERT_TRUE(group.OnReport(From({0}, Hits({2})), 5.8).ok());
  EXPECT_EQ(group.Deadline(), 6);
  EXPECT_EQ(group.TakeReport(5.9), std::nullopt);
  const GroupReport both{{{{0}, Hits({1})}, {{0}, Hits({2})}}};
  EXPECT_EQ(group.TakeReport(6), both);
}

TEST(Aggregator, EachMembersReportsKeepTheirOrder) {
  Aggregator group({0, 1}, 1);
  ASSERT_TRUE(group.OnReport(From({0}, Hits({1})), 0).ok());
  ASSERT_TRUE(group.OnReport(From({0}, Hits({2})), 0).ok());
  ASSERT_TRUE(group.OnReport(From({1}, Hits({2})), 0).ok());
  ASSERT_TRUE(group.OnReport(From({1}, Hits({1})), 0).ok());
  const GroupReport expected{{{{0}, Hits({1})}, {{0, 1}, Hits({2})}, {{1}, Hits({1})}}};
  EXPECT_EQ(group.TakeReport(0), expected);
}

TEST(Aggregator, GroupsOfGroups) {
  Aggregator all({1, 2, 3, 4, 5}, 1);
  ASSERT_TRUE(all.OnReport(From({4, 5}, Hits({7})), 0).ok());
  ASSERT_TRUE(all.OnReport(From({2, 3}, Hits({7})), 0).ok());
  ASSERT_TRUE(all.OnReport(From({1}, Hits({7})), 0).ok());
  EXPECT_EQ(all.TakeReport(0), From({1, 2, 3, 4, 5}, Hits({7})));
}

TEST(Aggregator, DifferentReportsTravelTogether) {
  Aggregator group({0, 1}, 1);
  ASSERT_TRUE(group.OnReport(From({0}, Hits({1}, 3)), 0).ok());
  ASSERT_TRUE(group.OnReport(From({1}, Hits({1}, 4)), 0).ok());
  EXPECT_EQ(group.TakeReport(0)->parts.size(), 2u);
}

TEST(Aggregator, NobodySpeaksForOthers) {
  Aggregator group({3, 5}, 1);
  EXPECT_EQ(group.OnReport(From({4}, Hits({1})), 0).code(), StatusCode::kProtocol);
  EXPECT_EQ(group.OnReport(From({3, 4, 5}, Hits({1})), 0).code(), StatusCode::kProtocol);
  EXPECT_EQ(group.TakeReport(99), std::nullopt);
}

TEST(Aggregator, LargeOnesComeInSeveralMessages) {
  Aggregator group({0, 1, 2, 3}, 1);
  for (uint32_t member = 0; member < 4; ++member) {
    Report report;
    report.requests.push_back(Named(std::string(60000, 'a' + member), Allreduce({1})));
    for (int i = 0; i < 9; ++i) report.requests.push_back(report.requests[0]);
    ASSERT_TRUE(group.OnReport(From({member}, report), 0).ok());
  }
  size_t parts = 0;
  size_t messages = 0;
  while (const auto report = group.TakeReport(0)) {
    EXPECT_LT(Encode(*report).size(), 2u << 20);
    parts += report->parts.size();
    ++messages;
  }
  EXPECT_EQ(parts, 4u);
  EXPECT_GT(messages, 1u);
}

TEST(Aggregator, TheCoordinatorUnderstandsTheGroup) {
  CoreCluster cluster(CoreCluster::Options(4));
  Aggregator group({1, 2, 3}, 1);
  cluster.SubmitAll(Named("a", Allreduce({5})));
  cluster.Deliver(0);
  for (uint32_t member = 1; member < 4; ++member) {
    ASSERT_TRUE(group.OnReport(From({member}, *cluster.member(member).TakeReport()), 0).ok());
    EXPECT_FALSE(cluster.coordinator().HasWork());
  }
  const auto decoded = DecodeGroupReport(Encode(*group.TakeReport(0)));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->parts.size(), 1u);
  ASSERT_TRUE(cluster.coordinator().OnReport(*decoded, 0).ok());
  const std::vector<Action> actions = cluster.Run();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].finished.size(), 1u);
}

TEST(Aggregator, TheCoordinatorRefusesMembersThatDontExist) {
  CoreCluster cluster(CoreCluster::Options(2));
  EXPECT_EQ(cluster.coordinator().OnReport(From({1, 2}, Hits({})), 0).code(),
            StatusCode::kProtocol);
}

TEST(GroupReportCodec, RoundTripAndDamage) {
  const GroupReport report{{{{0, 1, 2, 5, 9, 10}, Hits({1, 2, 3}, 7)}, {{4}, Hits({}, 8)}}};
  const std::vector<std::byte> bytes = Encode(report);
  const auto decoded = DecodeGroupReport(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, report);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeGroupReport({bytes.data(), size}).ok()) << size;
  }
  const GroupReport nobody{{{{}, Hits({1})}}};
  EXPECT_FALSE(DecodeGroupReport(Encode(nobody)).ok());
}

}  // namespace
}  // namespace horoscale
