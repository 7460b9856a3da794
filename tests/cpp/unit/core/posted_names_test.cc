// Posts of named operations. Members and the coordinator distinguish the uses of a name by their
// count.

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "core/post_table.h"
#include "core_cluster.h"

namespace horoscale {
namespace {

class PostedNames : public ::testing::Test {
 protected:
  PostedNames() : set(Options()) {
    set.SubmitAll(request);  // adds it to the cache
    set.DeliverAll();
    Run();
  }

  static CoordinatorOptions Options() {
    CoordinatorOptions options = CoreCluster::Options(3);
    options.stall_warning_seconds = 10;
    return options;
  }

  // All members apply the entries that can be planned; returns whether there were any.
  bool Run() {
    const std::vector<PlanEntry> plan = set.coordinator().TakePlan(0);
    for (const PlanEntry& entry : plan) {
      (void)set.Apply(entry);
      set.coordinator().OnExecuted(entry.sequence);
    }
    return !plan.empty();
  }

  // The member's post, on its way to the coordinator.
  Post SubmitAndPost(uint32_t member) {
    set.Submit(member, request);
    return *set.member(member).TakePost();
  }
  void Tell(uint32_t member, const Post& post) {
    const Status status = set.coordinator().OnPost(member, post, 0);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  const Request request = Named("loss", Allreduce({2}));
  CoreCluster set;
};

TEST_F(PostedNames, EachUseOfANameIsAnotherOperation) {
  Member& member = set.member(1);
  const Post first = SubmitAndPost(1);
  EXPECT_EQ(first.index, 0u);
  EXPECT_EQ(first.occurrence, 1u);
  member.EndPosted();
  const Post second = SubmitAndPost(1);
  EXPECT_EQ(second.occurrence, 2u);
  EXPECT_FALSE(second.IsOf(first));
  EXPECT_FALSE(member.MayPost(first));
  EXPECT_TRUE(member.MayPost(second));
}

TEST_F(PostedNames, PlannedUsesAndFailuresCountToo) {
  set.SubmitAll(request);
  set.DeliverAll();
  ASSERT_TRUE(Run());
  for (uint32_t i = 0; i < 3; ++i) set.Submit(i, i == 2 ? Named("loss", Allreduce({3})) : request);
  set.DeliverAll();
  ASSERT_TRUE(Run());
  EXPECT_EQ(SubmitAndPost(0).occurrence, 3u);
}

TEST_F(PostedNames, APostMayComeBeforeTheSlotThatItNames) {
  Post post = SubmitAndPost(1);
  post.slot = 7;
  post.slot_since = 2;  // an entry that has not arrived yet
  EXPECT_TRUE(set.member(0).MayPost(post));
  EXPECT_FALSE(set.member(0).HasPassed(post));
  post.slot_since = 1;  // an entry that assigned another slot: this one was retired
  EXPECT_FALSE(set.member(0).MayPost(post));
}

TEST_F(PostedNames, EndAlsoWhenTheirSlotIsRetiredMeanwhile) {
  PostTable table(3, 0);
  const Post post = SubmitAndPost(0);
  table.SetOwn(post);
  PlanEntry entry;
  entry.type = PlanEntry::Type::kExecute;
  entry.sequence = 2;
  entry.retired_slots = {post.slot};
  ASSERT_TRUE(set.member(0).Apply(entry).ok());
  EXPECT_TRUE(table.Add(1, post, {}, set.member(0)).ok());
  EXPECT_TRUE(table.Add(2, post, {}, set.member(0)).ok());
  ASSERT_TRUE(table.HasAll(std::vector<uint32_t>{1, 2}));
  EXPECT_NE(set.member(0).EndPosted(), kNoToken);
}

TEST_F(PostedNames, AreReportedWhereSomeMemberReports) {
  Tell(0, SubmitAndPost(0));
  set.Submit(1, request);
  set.Deliver(1);
  Tell(2, SubmitAndPost(2));
  ASSERT_TRUE(Run());
  for (uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(set.member(i).HasPending());
}

// Member 1 has ended a use by a post of member 2 that has not reached the coordinator yet.
TEST_F(PostedNames, TheNextUseMayBeReportedBeforeTheLastPostComes) {
  Post last;
  for (const uint32_t i : {0u, 1u, 2u}) {
    last = SubmitAndPost(i);
    if (i < 2) Tell(i, last);
  }
  set.member(1).EndPosted();
  set.Submit(1, request);
  set.Deliver(1);
  EXPECT_FALSE(Run());
  Tell(2, last);
  EXPECT_FALSE(Run());
  for (const uint32_t i : {0u, 2u}) set.member(i).EndPosted();
  Tell(0, SubmitAndPost(0));
  Tell(2, SubmitAndPost(2));
  ASSERT_TRUE(Run());
  for (uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(set.member(i).HasPending());
  EXPECT_TRUE(set.coordinator().Waiting(10).empty());
}

// Of members 1 and 2, whose host reports for both.
TEST_F(PostedNames, MayBeToldInAReport) {
  Report report;
  report.posted = SubmitAndPost(1);
  report.applied_sequence = report.posted->applied_sequence;
  EXPECT_EQ(SubmitAndPost(2), *report.posted);
  const GroupReport both{{{{1, 2}, report}}};
  ASSERT_TRUE(set.coordinator().OnReport(both, 0).ok());
  EXPECT_EQ(set.coordinator().Waiting(10).at(0).missing_ranks, std::vector<int>{10});
  EXPECT_EQ(set.coordinator().OnReport(both, 0).code(), StatusCode::kProtocol) << "twice";
  Tell(0, SubmitAndPost(0));
  EXPECT_TRUE(set.coordinator().Waiting(10).empty());
}

TEST_F(PostedNames, StallsAreReportedByName) {
  Tell(1, SubmitAndPost(1));
  const auto waiting = set.coordinator().Waiting(10);
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].display_name, "loss");
  EXPECT_EQ(waiting[0].ready_ranks, std::vector<int>{20});
  EXPECT_EQ(waiting[0].missing_ranks, (std::vector<int>{10, 30}));
}

// It has been waiting since its post, and was reported then.
TEST_F(PostedNames, AStallGoesOnWhereAPostIsReported) {
  Tell(1, SubmitAndPost(1));
  EXPECT_EQ(set.coordinator().TakeStallReports(12).at(0).seconds_waiting, 12);
  set.now = 15;
  set.Submit(0, request);
  set.Deliver(0);
  set.Submit(0, Named("later", Allreduce({2})));
  set.Deliver(0);
  EXPECT_TRUE(set.coordinator().TakeStallReports(21).empty());
  const auto reports = set.coordinator().TakeStallReports(24);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].display_name, "loss");
  EXPECT_EQ(reports[0].seconds_waiting, 24);
  EXPECT_EQ(reports[0].missing_ranks, std::vector<int>{30});
  EXPECT_EQ(set.coordinator().TakeStallReports(25).at(0).display_name, "later");
}

TEST_F(PostedNames, TwiceCanNotBe) {
  const Post post = SubmitAndPost(1);
  Tell(1, post);
  EXPECT_EQ(set.coordinator().OnPost(1, post, 0).code(), StatusCode::kProtocol);
}

}  // namespace
}  // namespace horoscale
