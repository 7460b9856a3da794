// Members and a coordinator together: what a set guarantees to its users.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/codec.h"
#include "core_cluster.h"

namespace horoscale {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(Protocol, TheSecondStepHitsTheCacheWithoutARequest) {
  CoreCluster cluster(CoreCluster::Options(3));
  cluster.SubmitAll(Named("a", Allreduce({4})));
  cluster.SubmitAll(Named("b", Allreduce({4})));
  EXPECT_THAT(cluster.Run(), SizeIs(1));
  cluster.SubmitAll(Named("b", Allreduce({4})));
  cluster.SubmitAll(Named("a", Allreduce({4})));
  const Report report = cluster.Deliver(1);
  EXPECT_THAT(report.hits, ElementsAre(0u, 1u));
  EXPECT_THAT(report.requests, IsEmpty());
  const std::vector<Action> actions = cluster.Run();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_THAT(actions[0].pieces, SizeIs(2));
  EXPECT_THAT(actions[0].finished, SizeIs(2));
}

TEST(Protocol, UnnamedCallsHitBySignature) {
  CoreCluster cluster(CoreCluster::Options(2));
  for (int i = 0; i < 3; ++i) cluster.SubmitAll(Named("", Allreduce({4})));
  EXPECT_THAT(cluster.Run(), SizeIs(1));
  cluster.SubmitAll(Named("", Allreduce({4})));
  cluster.SubmitAll(Named("", Allreduce({4})));
  const Report report = cluster.Deliver(0);
  EXPECT_THAT(report.unnamed_hits, ElementsAre(UnnamedHit{0, 4}, UnnamedHit{0, 5}));
  const std::vector<Action> actions = cluster.Run();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].display_name, "allreduce.unnamed.4");
  EXPECT_THAT(actions[0].finished, SizeIs(2));
}

TEST(Protocol, ANamePendingTwiceIsRefused) {
  Member member(3, 0, 2, 10);
  ASSERT_TRUE(member.Submit(Named("a", Allreduce({1})), 1).ok());
  const Status status = member.Submit(Named("a", Allreduce({1})), 2);
  EXPECT_EQ(status.code(), StatusCode::kDuplicateName);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("\"a\""), HasSubstr("process set 3")));
  EXPECT_THAT(member.Abandon(), ElementsAre(1u));
  EXPECT_TRUE(member.Submit(Named("a", Allreduce({1})), 3).ok());
}

TEST(Protocol, AMismatchNamesRanksAndWhatTheySaidAndIsOver) {
  CoreCluster cluster(CoreCluster::Options(3));
  cluster.SubmitAll(Named("a", Allreduce({3, 4})));
  cluster.Run();
  cluster.Submit(0, Named("a", Allreduce({3, 4})));  // a cache hit
  cluster.Submit(1, Named("a", Allreduce({4, 3})));
  cluster.Submit(2, Named("a", Allreduce({3, 4})));
  std::vector<Action> actions = cluster.Run();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].type, Action::Type::kFail);
  EXPECT_THAT(actions[0].finished, SizeIs(1));
  EXPECT_EQ(actions[0].failure.code(), StatusCode::kMismatch);
  EXPECT_EQ(actions[0].failure.message(),
            "the ranks of process set 0 disagree about \"a\": ranks 10 and 30: float32[3, 4]; "
            "rank 20: float32[4, 3]");
  EXPECT_EQ(actions[0].failure.detail().tensor, "a");
  // Both the old and a new shape work at once afterwards.
  for (const Signature& signature : {Allreduce({3, 4}), Allreduce({4, 3}), Allreduce({4, 3})}) {
    cluster.SubmitAll(Named("a", signature));
    actions = cluster.Run();
    ASSERT_THAT(actions, SizeIs(1));
    EXPECT_EQ(actions[0].type, Action::Type::kExecute);
  }
  EXPECT_EQ(cluster.member(1).cache().size(), 1u);
}

TEST(Protocol, MismatchTextsSayOnlyWhatDiffers) {
  CoreCluster cluster(CoreCluster::Options(2));
  Signature other = Allreduce({2});
  other.kind = OpKind::kBroadcast;
  other.root = 20;
  other.postscale = 0.5;
  cluster.Submit(0, Named("a", Allreduce({2})));
  cluster.Submit(1, Named("a", other));
  const std::vector<Action> actions = cluster.Run();
  EXPECT_THAT(actions[0].failure.message(),
              AllOf(HasSubstr("allreduce"), HasSubstr("broadcast, root 20, postscale factor 0.5"),
                    Not(HasSubstr("float32"))));
}

TEST(Protocol, RanksThatCompressDifferentlyDisagree) {
  CoreCluster cluster(CoreCluster::Options(3));
  Signature half = Allreduce({2});
  half.encoding = {EncodingKind::kBfloat16};
  cluster.SubmitAll(Named("a", half));
  ASSERT_EQ(cluster.Run()[0].common.encoding.kind, EncodingKind::kBfloat16);
  cluster.Submit(0, Named("a", half));
  cluster.Submit(1, Named("a", Allreduce({2})));
  cluster.Submit(2, Named("a", half));
  EXPECT_EQ(
      cluster.Run()[0].failure.message(),
      "the ranks of process set 0 disagree about \"a\": ranks 10 and 30: compressed to bfloat16; "
      "rank 20: not compressed");
}

TEST(Protocol, ThePlanChoosesTheEncodingsOfAdaptiveOperations) {
  CoreCluster cluster(CoreCluster::Options(2));
  Signature adaptive = Allreduce({2});
  adaptive.encoding = {EncodingKind::kAdaptive, 1000};
  Signature other = adaptive;
  other.encoding.parameter = 2000;
  cluster.SubmitAll(Named("a", adaptive));
  cluster.SubmitAll(Named("b", Allreduce({2})));
  cluster.SubmitAll(Named("c", other));
  cluster.DeliverAll();
  std::vector<PlanEntry> plan = cluster.coordinator().TakePlan(0);
  ASSERT_EQ(plan.size(), 1u) << "they are sent alike, and so together";
  ASSERT_EQ(plan[0].encoding, Encoding());
  PlanEntry without = plan[0];
  without.encoding.reset();
  EXPECT_EQ(cluster.member(1).Apply(without).status().code(), StatusCode::kProtocol);
  plan[0].encoding = Encoding{EncodingKind::kInt8};
  EXPECT_EQ(cluster.member(0).Apply(plan[0]).status().code(), StatusCode::kProtocol)
      << "one of them isn't adaptive";
}

TEST(Protocol, ErrorsAreOfNamesThatAreKnown) {
  CoreCluster cluster(CoreCluster::Options(2));
  Report report;
  report.errors = {{5, {EncodingKind::kInt8}, 60}};
  EXPECT_EQ(cluster.coordinator().OnReport(1, report, 0).code(), StatusCode::kProtocol);
}

TEST(Protocol, MismatchTextsLeaveOutWhatAKindDoesNotHave) {
  CoreCluster cluster(CoreCluster::Options(2));
  Signature average = Allreduce({2});
  average.reduce_op = ReduceOp::kAverage;
  Signature gather = Allreduce({kFreeDimension});
  gather.kind = OpKind::kAllgather;
  cluster.Submit(0, Named("a", average));
  cluster.Submit(1, Named("a", gather));
  EXPECT_THAT(cluster.Run()[0].failure.message(),
              AllOf(HasSubstr("Average"), Not(HasSubstr("Sum"))));
}

TEST(Protocol, AGroupMismatchNumbersTheTensors) {
  CoreCluster cluster(CoreCluster::Options(2));
  Signature group = Allreduce({2});
  group.tensors.push_back({DataType::kFloat32, {3}});
  cluster.Submit(0, Named("g", group));
  group.tensors[1].dtype = DataType::kInt32;
  cluster.Submit(1, Named("g", group));
  EXPECT_THAT(cluster.Run()[0].failure.message(),
              AllOf(HasSubstr("tensor 1 of the group int32[3]"), Not(HasSubstr("tensor 0"))));
}

TEST(Protocol, ANewShapeReplacesTheOld) {
  CoreCluster cluster(CoreCluster::Options(2));
  for (int64_t rows = 1; rows < 20; ++rows) {
    cluster.SubmitAll(Named("a", Allreduce({rows})));
    const std::vector<Action> actions = cluster.Run();
    ASSERT_THAT(actions, SizeIs(1));
    EXPECT_EQ(actions[0].pieces[0].count, rows);
    EXPECT_EQ(cluster.member(0).cache().size(), 1u);
  }
}

TEST(Protocol, AHitInFlightOnARetiredSlotIsUnderstood) {
  CoordinatorOptions options = CoreCluster::Options(2);
  options.cache_capacity = 1;
  CoreCluster cluster(options);
  cluster.SubmitAll(Named("a", Allreduce({1})));
  cluster.Run();
  // Member 1's hit on a is in flight while the plan gives a's slot to b.
  cluster.SubmitAll(Named("b", Allreduce({2})));
  cluster.DeliverAll();
  cluster.Submit(1, Named("a", Allreduce({1})));
  const Report late = *cluster.member(1).TakeReport();
  EXPECT_THAT(late.hits, SizeIs(1));
  const std::vector<PlanEntry> plan = cluster.coordinator().TakePlan(0);
  EXPECT_THAT(plan[0].retired_slots, SizeIs(1));
  cluster.Apply(plan[0]);
  ASSERT_TRUE(cluster.coordinator().OnReport(1, late, 0).ok());
  cluster.Submit(0, Named("a", Allreduce({1})));
  const std::vector<Action> actions = cluster.Run();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].display_name, "a");
}

TEST(Protocol, TheCoordinatorsPriorityCountsAlsoForHits) {
  CoordinatorOptions options = CoreCluster::Options(2);
  options.limits.fusion_threshold_bytes = 1;
  CoreCluster cluster(options);
  for (int step = 0; step < 2; ++step) {
    cluster.Submit(0, Named("a", Allreduce({4}), 1));
    cluster.Submit(0, Named("b", Allreduce({4}), 2));
    cluster.Submit(1, Named("b", Allreduce({4}), 1));
    cluster.Submit(1, Named("a", Allreduce({4}), 2));
    const std::vector<Action> actions = cluster.Run();
    ASSERT_THAT(actions, SizeIs(2));
    EXPECT_EQ(actions[0].display_name, "b");
  }
}

TEST(Protocol, AJoinedRankIsAbsentUntilAllHaveJoined) {
  CoreCluster cluster(CoreCluster::Options(3));
  cluster.SubmitAll(Named("a", Allreduce({4})));
  cluster.Run();
  const Token join = cluster.Submit(0, Join());
  EXPECT_EQ(cluster.member(0).Submit(Named("a", Allreduce({4})), 99).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster.member(0).Submit(Join(), 99).code(), StatusCode::kDuplicateName);
  cluster.Submit(1, Named("a", Allreduce({4})));
  cluster.Submit(2, Named("a", Allreduce({4})));
  std::vector<Action> actions = cluster.Run();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_THAT(actions[0].absent, ElementsAre(0u));
  EXPECT_EQ(actions[0].divisor, 3u);
  EXPECT_EQ(actions[0].pieces[0].token, kNoToken);
  EXPECT_EQ(actions[0].display_name, "a");
  EXPECT_THAT(actions[0].finished, IsEmpty());
  cluster.Submit(2, Join());
  EXPECT_THAT(cluster.Run(), IsEmpty());
  cluster.Submit(1, Join());
  actions = cluster.Run();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].type, Action::Type::kAllJoined);
  EXPECT_EQ(actions[0].last_joined, 20);
  EXPECT_THAT(actions[0].finished, ElementsAre(join));
  cluster.SubmitAll(Named("a", Allreduce({4})));
  EXPECT_THAT(cluster.Run()[0].absent, IsEmpty());
}

TEST(Protocol, AnAverageMayBeOverTheRanksThatTakePart) {
  CoordinatorOptions options = CoreCluster::Options(3);
  options.average_over_participants = true;
  CoreCluster cluster(options);
  cluster.SubmitAll(Named("a", Allreduce({4})));
  EXPECT_EQ(cluster.Run()[0].divisor, 3u);
  cluster.Submit(0, Join());
  cluster.Submit(1, Named("a", Allreduce({4})));
  cluster.Submit(2, Named("a", Allreduce({4})));
  EXPECT_EQ(cluster.Run()[0].divisor, 2u);
}

TEST(Protocol, UnnamedCallsMatchAgainAfterAJoin) {
  CoreCluster cluster(CoreCluster::Options(2));
  cluster.Submit(0, Named("", Allreduce({4})));  // one call more than rank 20 makes
  cluster.Submit(0, Join());
  cluster.Submit(1, Join());
  EXPECT_THAT(cluster.Run(), SizeIs(2));
  cluster.SubmitAll(Named("", Allreduce({4})));
  EXPECT_THAT(cluster.Run(), SizeIs(1));
  EXPECT_FALSE(cluster.member(0).HasPending());
}

TEST(Protocol, WhatNeedsAJoinedRankFailsOnTheOthers) {
  CoreCluster cluster(CoreCluster::Options(2));
  cluster.Submit(0, Join());
  Signature signature = Allreduce({4});
  signature.root = 10;
  for (OpKind kind :
       {OpKind::kAllgather, OpKind::kAlltoall, OpKind::kReducescatter, OpKind::kBroadcast,
        OpKind::kReduce, OpKind::kGather, OpKind::kScatter, OpKind::kAddProcessSet}) {
    signature.kind = kind;
    const Token token = cluster.Submit(1, Named("x", signature));
    cluster.DeliverAll();
    const std::vector<PlanEntry> plan = cluster.coordinator().TakePlan(0);
    ASSERT_THAT(plan, SizeIs(1));
    EXPECT_THAT(cluster.member(0).Apply(plan[0])->finished, IsEmpty());
    const Result<Action> action = cluster.member(1).Apply(plan[0]);
    EXPECT_THAT(action->finished, ElementsAre(token));
    EXPECT_EQ(action->failure.code(), StatusCode::kJoined);
    EXPECT_THAT(action->failure.message(), AllOf(HasSubstr("rank 10"), HasSubstr("join()")));
  }
  signature.root = 20;
  for (OpKind kind : {OpKind::kBroadcast, OpKind::kReduce}) {
    signature.kind = kind;
    cluster.Submit(1, Named("x", signature));
    EXPECT_EQ(cluster.Run()[0].type, Action::Type::kExecute);
  }
}

TEST(Protocol, ASetThatDoesNotGoOnWithoutJoinedMembersFailsEverything) {
  CoordinatorOptions options = CoreCluster::Options(2);
  options.goes_on_without_joined = false;
  CoreCluster cluster(options);
  cluster.Submit(0, Join());
  Signature signature = Allreduce({4});
  signature.root = 20;
  for (OpKind kind : {OpKind::kAllreduce, OpKind::kBroadcast}) {
    signature.kind = kind;
    cluster.Submit(1, Named("x", signature));
    const std::vector<Action> actions = cluster.Run();
    ASSERT_THAT(actions, SizeIs(1));
    EXPECT_EQ(actions[0].type, Action::Type::kFail);
    EXPECT_FALSE(cluster.member(1).HasPending());
  }
}

TEST(Protocol, StallReportsNameTheMissingRanks) {
  CoordinatorOptions options = CoreCluster::Options(4);
  options.stall_warning_seconds = 5;
  CoreCluster cluster(options);
  cluster.Submit(1, Named("a", Allreduce({4})));
  cluster.Submit(3, Named("a", Allreduce({4})));
  cluster.Submit(2, Join());
  cluster.DeliverAll();
  EXPECT_THAT(cluster.coordinator().TakeStallReports(4), IsEmpty());
  const std::vector<StallReport> reports = cluster.coordinator().TakeStallReports(6);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].display_name, "a");
  EXPECT_THAT(reports[0].missing_ranks, ElementsAre(10));
  EXPECT_THAT(reports[0].ready_ranks, ElementsAre(20, 40));
  EXPECT_EQ(reports[0].seconds_waiting, 6);
  cluster.Submit(0, Named("a", Allreduce({4})));
  cluster.Run();
  EXPECT_THAT(cluster.coordinator().TakeStallReports(100), IsEmpty());
}

TEST(Protocol, TensorsAreCutAndTheTokenEndsWithTheLastPart) {
  CoordinatorOptions options = CoreCluster::Options(2);
  options.limits.partition_bytes = 1024;
  options.limits.fusion_threshold_bytes = 1024;
  CoreCluster cluster(options);
  for (int step = 0; step < 2; ++step) {
    cluster.SubmitAll(Named("a", Allreduce({600})));
    const std::vector<Action> actions = cluster.Run();
    ASSERT_THAT(actions, SizeIs(3));
    EXPECT_EQ(actions[1].pieces[0].begin, 256);
    EXPECT_EQ(actions[1].pieces[0].count, 256);
    EXPECT_THAT(actions[1].finished, IsEmpty());
    EXPECT_THAT(actions[2].finished, SizeIs(1));
  }
}

Request WithRows(OpKind kind, std::string name, int64_t own_bytes) {
  Signature signature = Allreduce({kFreeDimension, 256});
  signature.kind = kind;
  Request request = Named(std::move(name), signature);
  request.own_bytes = own_bytes;
  return request;
}

// Together they would form one bucket of 1.6 GB, and delay urgent tensors.
TEST(Protocol, AllgathersCountWithTheRowsOfTheCoordinatorsMember) {
  CoreCluster cluster(CoreCluster::Options(2));
  for (const bool named : {true, false}) {
    for (const bool cached : {false, true}) {
      for (int i = 0; i < 80; ++i) {
        const std::string name = named ? "g" + std::to_string(i) : "";
        cluster.Submit(0, WithRows(OpKind::kAllgather, name, 10 << 20));
        cluster.Submit(1, WithRows(OpKind::kAllgather, name, 1));  // rows need not agree
      }
      const Report report = cluster.Deliver(0);
      EXPECT_EQ(report.requests.empty(), cached);
      cluster.Deliver(1);
      const std::vector<PlanEntry> first = cluster.coordinator().TakePlan(0);
      ASSERT_THAT(first, SizeIs(2));
      EXPECT_THAT(first[0].items, SizeIs(1));
      cluster.SubmitAll(Named("urgent", Allreduce({1024}), 1));
      cluster.DeliverAll();
      cluster.Apply(first[0]);
      const std::vector<PlanEntry> second = cluster.coordinator().TakePlan(0);
      ASSERT_THAT(second, SizeIs(1));
      cluster.Apply(first[1]);
      EXPECT_EQ(cluster.Apply(second[0]).display_name, "urgent");
      EXPECT_THAT(cluster.Run(), SizeIs(78));
    }
  }
}

TEST(Protocol, AlltoallsCountWithTheRowsOfTheCoordinatorsMember) {
  CoreCluster cluster(CoreCluster::Options(2));
  for (int i = 0; i < 3; ++i) cluster.SubmitAll(WithRows(OpKind::kAlltoall, "", 40 << 20));
  cluster.DeliverAll();
  // A second one would exceed the credit.
  const std::vector<PlanEntry> plan = cluster.coordinator().TakePlan(0);
  ASSERT_THAT(plan, SizeIs(1));
  cluster.Apply(plan[0]);
  EXPECT_THAT(cluster.Run(), SizeIs(2));
}

TEST(Protocol, SizesOfOneRankAreBounded) {
  CoreCluster cluster(CoreCluster::Options(3));
  for (const int64_t bytes : {INT64_MIN, int64_t{-1}, INT64_MAX}) {
    for (int i = 0; i < 3; ++i) cluster.SubmitAll(WithRows(OpKind::kAllgather, "", bytes));
    EXPECT_FALSE(cluster.Run().empty());
    EXPECT_FALSE(cluster.member(2).HasPending());
  }
}

TEST(Protocol, AGroupThatIsNotCachedIsNamedOncePerBucket) {
  CoordinatorOptions options = CoreCluster::Options(2);
  options.cache_capacity = 0;
  CoreCluster cluster(options);
  Signature group = Allreduce({2});
  group.tensors.resize(50, group.tensors[0]);
  group.tensors.push_back({DataType::kInt32, {0}});
  cluster.SubmitAll(Named("g", group));
  cluster.DeliverAll();
  const std::vector<PlanEntry> plan = cluster.coordinator().TakePlan(0);
  ASSERT_THAT(plan, SizeIs(2));
  for (const PlanEntry& entry : plan) {
    EXPECT_TRUE(entry.items[0].request.has_value());
    for (size_t i = 1; i < entry.items.size(); ++i) EXPECT_FALSE(entry.items[i].request);
    cluster.Apply(entry);
  }
  EXPECT_FALSE(cluster.member(1).HasPending());
}

TEST(Protocol, LargeReportsComeInSeveralWithTheJoinInTheLast) {
  Member member(0, 1, 2, 10);
  const std::string prefix(60'000, 'x');
  for (Token i = 1; i <= 40; ++i) {
    ASSERT_TRUE(member.Submit(Named(prefix + std::to_string(i), Allreduce({1})), i).ok());
  }
  ASSERT_TRUE(member.Submit(Join(), 41).ok());
  size_t requests = 0;
  bool joined = false;
  while (const std::optional<Report> report = member.TakeReport()) {
    EXPECT_FALSE(joined);
    EXPECT_LT(Encode(*report).size(), kMaxMessageBytes / 8);
    requests += report->requests.size();
    joined = report->join;
  }
  EXPECT_EQ(requests, 40u);
  EXPECT_TRUE(joined);
}

class BrokenPeer : public ::testing::Test {
 protected:
  BrokenPeer() : cluster_(CoreCluster::Options(2)) {
    cluster_.SubmitAll(Named("a", Allreduce({4})));
    cluster_.SubmitAll(Named("", Allreduce({5})));
    cluster_.Run();  // slots 0 and 1, two entries or one
    valid_.applied_sequence = cluster_.member(0).applied_sequence();
  }

  void ExpectRefused(const Report& report, const char* what) {
    const Status status = cluster_.coordinator().OnReport(1, report, 0);
    EXPECT_EQ(status.code(), StatusCode::kProtocol);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 20"), HasSubstr(what)));
    EXPECT_THAT(status.detail().ranks, ElementsAre(20));
  }

  CoreCluster cluster_;
  Report valid_;
};

TEST_F(BrokenPeer, UnknownSlot) {
  valid_.hits = {2};
  ExpectRefused(valid_, "slot 2");
}

TEST_F(BrokenPeer, UnnamedSlotHitByName) {
  valid_.hits = {1};
  ExpectRefused(valid_, "slot 1");
}

TEST_F(BrokenPeer, SlotThatItCanNotKnowYet) {
  CoreCluster fresh(CoreCluster::Options(2));
  fresh.SubmitAll(Named("a", Allreduce({4})));
  fresh.DeliverAll();
  ASSERT_THAT(fresh.coordinator().TakePlan(0), SizeIs(1));
  Report report;
  report.hits = {0};
  EXPECT_EQ(fresh.coordinator().OnReport(1, report, 0).code(), StatusCode::kProtocol);
}

TEST_F(BrokenPeer, KeyReportedTwice) {
  valid_.hits = {0};
  valid_.requests = {Named("a", Allreduce({9}))};
  ExpectRefused(valid_, "already pending");
}

TEST_F(BrokenPeer, IndicesThatJumpOrGoBack) {
  valid_.unnamed_hits = {{1, 1}};
  ExpectRefused(valid_, "not consecutive");
  valid_.unnamed_hits = {{1, 9}};
  ExpectRefused(valid_, "not consecutive");
}

TEST_F(BrokenPeer, AppliedSequencesThatCanNotBe) {
  valid_.applied_sequence = 100;
  ExpectRefused(valid_, "applied");
  valid_.applied_sequence = cluster_.member(1).applied_sequence();
  ASSERT_TRUE(cluster_.coordinator().OnReport(1, valid_, 0).ok());
  valid_.applied_sequence = 0;
  ExpectRefused(valid_, "applied");
}

TEST_F(BrokenPeer, PrioritiesOfAnotherThanTheCoordinator) {
  valid_.hits = {0};
  valid_.hit_priorities = {1};
  ExpectRefused(valid_, "priorities");
}

TEST_F(BrokenPeer, SizesOfAnotherThanTheCoordinator) {
  valid_.hits = {0};
  valid_.hit_bytes = {1};
  ExpectRefused(valid_, "of other members' operations");
}

TEST_F(BrokenPeer, AReportAfterItsJoin) {
  valid_.join = true;
  ASSERT_TRUE(cluster_.coordinator().OnReport(1, valid_, 0).ok());
  ExpectRefused(valid_, "joins twice");
  valid_.join = false;
  valid_.hits = {0};
  ExpectRefused(valid_, "has called join()");
}

class BrokenPlan : public ::testing::Test {
 protected:
  BrokenPlan() : member_(0, 1, 2, 10) {
    EXPECT_TRUE(member_.Submit(Named("a", Allreduce({4})), 1).ok());
    EXPECT_TRUE(member_.TakeReport().has_value());
    entry_.sequence = 1;
    PlanItem& item = entry_.items.emplace_back();
    item.request = Named("a", Allreduce({4}));
  }

  void ExpectRefused(const char* what) {
    const Result<Action> action = member_.Apply(entry_);
    EXPECT_EQ(action.status().code(), StatusCode::kProtocol);
    EXPECT_THAT(action.status().message(), HasSubstr(what));
    EXPECT_EQ(member_.applied_sequence(), 0u);
  }

  Member member_;
  PlanEntry entry_;
};

TEST_F(BrokenPlan, OutOfOrder) {
  entry_.sequence = 2;
  ExpectRefused("wrong number 2");
}

TEST_F(BrokenPlan, AnotherSignatureThanSubmitted) {
  entry_.items[0].request->signature = Allreduce({5});
  ExpectRefused("other arguments");
}

TEST_F(BrokenPlan, WhatWasNotSubmitted) {
  entry_.items[0].request->name = "b";
  ExpectRefused("not submitted: b");
}

TEST_F(BrokenPlan, AnAbsentMemberThatHasNotJoined) {
  entry_.absent = {1};
  entry_.divisor = 2;
  ExpectRefused("has called join()");
  entry_.absent = {2};
  ExpectRefused("does not exist");
}

TEST_F(BrokenPlan, AnAverageOverMoreMembersThanThereAre) {
  entry_.absent = {1};
  entry_.divisor = 3;
  ExpectRefused("averages over 3");
  entry_.divisor = 0;
  ExpectRefused("averages over 0");
}

TEST_F(BrokenPlan, PartsOutsideTheTensorOrOutOfOrder) {
  PlanItem& item = entry_.items[0];
  item.whole = false;
  item.begin = 2;
  item.count = 3;
  ExpectRefused("out of its tensor's bounds");
  item.count = 2;
  ExpectRefused("not consecutive");
  item.tensor = 1;
  ExpectRefused("no tensor");
}

TEST_F(BrokenPlan, OneUnitTwice) {
  entry_.items.push_back(entry_.items[0]);
  ExpectRefused("not submitted");
}

TEST_F(BrokenPlan, APartAfterTheEndOfItsUnit) {
  PlanItem& more = entry_.items.emplace_back();
  more.whole = false;
  more.count = 1;
  ExpectRefused("after its end");
}

TEST_F(BrokenPlan, AnUnknownSlot) {
  entry_.items[0].request.reset();
  entry_.items[0].slot = 3;
  ExpectRefused("slot 3");
  entry_.items.clear();
  entry_.retired_slots = {4};
  ExpectRefused("slot 4");
}

TEST_F(BrokenPlan, AJoinThatIsNone) {
  entry_.items.clear();
  entry_.type = PlanEntry::Type::kAllJoined;
  ExpectRefused("all ranks have called join()");
}

}  // namespace
}  // namespace horoscale
