// How the coordinator counts late members from the arrival times of reports and posts.

#include "core/lateness.h"

#include <gtest/gtest.h>

#include <vector>

#include "core_cluster.h"

namespace horoscale {
namespace {

void Expect(const Coordinator& coordinator, const std::vector<uint64_t>& operations,
            const std::vector<double>& seconds) {
  const std::vector<Lateness::Member>& members = coordinator.lateness().members();
  ASSERT_EQ(members.size(), operations.size());
  for (size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(members[i].operations, operations[i]) << "member " << i;
    EXPECT_DOUBLE_EQ(members[i].seconds, seconds[i]) << "member " << i;
  }
}

void Report(CoreCluster& cluster, uint32_t member, double now) {
  const auto report = cluster.member(member).TakeReport();
  ASSERT_TRUE(report.has_value());
  ASSERT_TRUE(cluster.coordinator().OnReport(member, *report, now).ok());
}

TEST(Lateness, TheLastToReportIsLateFromTheFirstReportOn) {
  CoreCluster cluster(CoreCluster::Options(3));
  cluster.SubmitAll(Named("a", Allreduce({4})));
  Report(cluster, 1, 10.0);
  Report(cluster, 0, 10.25);
  Expect(cluster.coordinator(), {0, 0, 0}, {0, 0, 0});
  Report(cluster, 2, 10.5);
  Expect(cluster.coordinator(), {0, 0, 1}, {0, 0, 0.5});
}

TEST(Lateness, NobodyIsLateWhereAllReportAtOnce) {
  CoreCluster cluster(CoreCluster::Options(2));
  cluster.SubmitAll(Named("a", Allreduce({4})));
  Report(cluster, 1, 3.0);
  Report(cluster, 0, 3.0);
  Expect(cluster.coordinator(), {0, 0}, {0, 0});
}

TEST(Lateness, OperationsThatWaitTogetherCountTheirTimeOnce) {
  CoreCluster cluster(CoreCluster::Options(2));
  cluster.SubmitAll(Named("a", Allreduce({4})));
  cluster.SubmitAll(Named("b", Allreduce({4})));
  Report(cluster, 0, 1.0);
  Report(cluster, 1, 3.0);
  Expect(cluster.coordinator(), {0, 2}, {0, 2.0});
  // The second wait begins before the first has ended.
  cluster.Run();
  cluster.Submit(0, Named("a", Allreduce({4})));
  Report(cluster, 0, 5.0);
  cluster.Submit(0, Named("b", Allreduce({4})));
  Report(cluster, 0, 6.0);
  cluster.Submit(1, Named("a", Allreduce({4})));
  Report(cluster, 1, 7.0);
  cluster.Submit(1, Named("b", Allreduce({4})));
  Report(cluster, 1, 8.0);
  Expect(cluster.coordinator(), {0, 4}, {0, 5.0});
}

TEST(Lateness, MembersOfOneReportAreLateTogether) {
  CoreCluster cluster(CoreCluster::Options(4));
  cluster.SubmitAll(Named("a", Allreduce({4})));
  Report(cluster, 0, 1.0);
  Report(cluster, 3, 1.5);
  auto report = cluster.member(1).TakeReport();
  ASSERT_TRUE(report.has_value());
  ASSERT_TRUE(cluster.member(2).TakeReport().has_value());
  ASSERT_TRUE(cluster.coordinator().OnReport({{{{1, 2}, *report}}}, 2.0).ok());
  Expect(cluster.coordinator(), {0, 1, 1, 0}, {0, 1.0, 1.0, 0});
}

TEST(Lateness, WhoHasJoinedIsNotLate) {
  CoreCluster cluster(CoreCluster::Options(3));
  cluster.Submit(0, Named("a", Allreduce({4})));
  cluster.Submit(1, Named("a", Allreduce({4})));
  cluster.Submit(2, Join());
  Report(cluster, 0, 1.0);
  Report(cluster, 1, 2.0);
  Report(cluster, 2, 9.0);
  Expect(cluster.coordinator(), {0, 0, 0}, {0, 0, 0});
}

TEST(Lateness, PostsCountAsReports) {
  CoreCluster cluster(CoreCluster::Options(2));
  const Request request = Named("loss", Allreduce({2}));
  cluster.SubmitAll(request);
  cluster.Run();  // adds it to the cache
  for (const uint32_t member : {1u, 0u}) {
    cluster.Submit(member, request);
    const auto post = cluster.member(member).TakePost();
    ASSERT_TRUE(post.has_value());
    ASSERT_TRUE(cluster.coordinator().OnPost(member, *post, member == 1 ? 20.0 : 20.125).ok());
  }
  Expect(cluster.coordinator(), {1, 0}, {0.125, 0});
}

TEST(Lateness, AnOperationThatOneMemberPostsAndAnotherReportsCounts) {
  CoreCluster cluster(CoreCluster::Options(2));
  const Request request = Named("loss", Allreduce({2}));
  cluster.SubmitAll(request);
  cluster.Run();
  cluster.Submit(1, request);
  ASSERT_TRUE(cluster.coordinator().OnPost(1, *cluster.member(1).TakePost(), 4.0).ok());
  cluster.Submit(0, request);
  Report(cluster, 0, 6.0);
  Expect(cluster.coordinator(), {1, 0}, {2.0, 0});
}

}  // namespace
}  // namespace horoscale
