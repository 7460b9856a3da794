#include "core/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core_cluster.h"

namespace horoscale {
namespace {

class SchedulerTest : public ::testing::Test {
 protected:
  static Scheduler Make(int64_t bucket_bytes, int64_t partition_bytes, int64_t credit_bytes) {
    return Scheduler(FusionPlanner({bucket_bytes, partition_bytes}), credit_bytes, 1000);
  }

  static void Push(Scheduler& scheduler, UnitId unit, const Signature& signature, int priority = 0,
                   std::vector<uint32_t> absent = {}) {
    scheduler.Push({unit, std::make_shared<const Signature>(signature), absent, priority, 100,
                    signature.TotalBytes()});
  }

  // Takes everything, and charges each bucket's bytes to the credit; returns units by bucket.
  std::vector<std::vector<UnitId>> Drain(Scheduler& scheduler) {
    std::vector<std::vector<UnitId>> taken;
    for (auto buckets = scheduler.Take(); !buckets.empty(); buckets = scheduler.Take()) {
      for (const Bucket& bucket : buckets) {
        std::vector<UnitId>& units = taken.emplace_back();
        for (const Part& part : bucket.parts) units.push_back(part.unit);
        scheduler.Published(++sequence_, bucket.bytes);
      }
    }
    return taken;
  }

  uint64_t sequence_ = 0;
};

using Units = std::vector<std::vector<UnitId>>;

TEST_F(SchedulerTest, FusesUpToTheLimit) {
  Scheduler scheduler = Make(100, 0, 1000);
  for (UnitId unit = 0; unit < 5; ++unit) Push(scheduler, unit, Allreduce({10}));
  EXPECT_EQ(Drain(scheduler), (Units{{0, 1}, {2, 3}, {4}}));
}

TEST_F(SchedulerTest, AdasumIsFusedAndNeverCut) {
  Scheduler scheduler = Make(1000, 64, 100000);
  Signature adasum = Allreduce({1000});
  adasum.reduce_op = ReduceOp::kAdasum;
  Signature small = Allreduce({10});
  small.reduce_op = ReduceOp::kAdasum;
  Push(scheduler, 0, adasum);
  Push(scheduler, 1, small);
  Push(scheduler, 2, small);
  Push(scheduler, 3, Allreduce({10}));
  EXPECT_EQ(Drain(scheduler), (Units{{0}, {1, 2}, {3}}));
}

TEST_F(SchedulerTest, MostUrgentFirstAndFifoAmongEquals) {
  Scheduler scheduler = Make(40, 0, 1000);
  Push(scheduler, 0, Allreduce({10}), 0);
  Push(scheduler, 1, Allreduce({10}), 5);
  Push(scheduler, 2, Allreduce({10}), 0);
  Push(scheduler, 3, Allreduce({10}), 5);
  EXPECT_EQ(Drain(scheduler), (Units{{1}, {3}, {0}, {2}}));
}

TEST_F(SchedulerTest, AnUrgentUnitIsNotDelayedToFillABucket) {
  Scheduler scheduler = Make(1000, 0, 10000);
  Push(scheduler, 0, Allreduce({10}), 5);
  Push(scheduler, 1, Allreduce({10}, DataType::kInt32), 5);
  Push(scheduler, 2, Allreduce({10}), 0);
  // 2 would fit the first bucket, but 1 is more urgent than 2.
  EXPECT_EQ(Drain(scheduler), (Units{{0}, {1}, {2}}));
  Push(scheduler, 0, Allreduce({10}), 5);
  Push(scheduler, 2, Allreduce({10}), 0);
  EXPECT_EQ(Drain(scheduler), (Units{{0, 2}}));
}

TEST_F(SchedulerTest, ALessUrgentUnitJoinsOnlyWhileThatIsSoonOver) {
  Scheduler scheduler = Make(1 << 20, 8192, 1 << 22);
  Push(scheduler, 0, Allreduce({10}), 5);
  for (UnitId unit = 1; unit < 4; ++unit) Push(scheduler, unit, Allreduce({1000}), 0);
  Push(scheduler, 4, Allreduce({1}), -1);
  // Not even the small one, which would then overtake others.
  EXPECT_EQ(Drain(scheduler), (Units{{0, 1, 2}, {3, 4}}));
}

TEST_F(SchedulerTest, BucketsGrowWithTheTimeThatOneTakes) {
  Scheduler scheduler(FusionPlanner({1 << 20, 0}), 1 << 22, 2);
  UnitId next = 0;
  std::vector<size_t> sizes;
  uint64_t executed = 0;
  for (int arrivals = 1; arrivals < 40; ++arrivals) {
    Push(scheduler, next++, Allreduce({100}), -arrivals);
    for (const auto& units : Drain(scheduler)) sizes.push_back(units.size());
    if (arrivals % 5 == 0) scheduler.Executed(++executed);
  }
  // The first two at once, then whatever arrived in the time of five.
  EXPECT_EQ(sizes, (std::vector<size_t>{1, 1, 4, 5, 5, 5, 5, 5, 5}));
  Push(scheduler, 1000, Allreduce({100}), 7);
  scheduler.Executed(++executed);
  EXPECT_EQ(Drain(scheduler)[0][0], 1000u);  // urgent units are in the next bucket, in front
}

TEST_F(SchedulerTest, BucketsNeverMix) {
  Scheduler scheduler = Make(1 << 20, 0, 1 << 22);
  std::vector<Signature> signatures(12, Allreduce({10}));
  signatures[1].kind = OpKind::kReducescatter;
  signatures[2].reduce_op = ReduceOp::kMax;
  signatures[3].kind = OpKind::kBroadcast;
  signatures[4].kind = OpKind::kBroadcast;
  signatures[4].root = 10;
  signatures[5].prescale = 2;
  signatures[6].on_device = true;
  signatures[7].tensors[0].dtype = DataType::kFloat64;
  signatures[8].encoding = {EncodingKind::kBfloat16};
  signatures[9].kind = OpKind::kReduce;
  signatures[10].kind = OpKind::kReduce;
  signatures[10].root = 10;
  signatures[11].kind = OpKind::kReducescatter;
  signatures[11].splits = {10};
  for (UnitId unit = 0; unit < 12; ++unit) Push(scheduler, unit, signatures[unit]);
  Push(scheduler, 12, Allreduce({10}), 0, {1});
  EXPECT_EQ(Drain(scheduler),
            (Units{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}}));
}

TEST_F(SchedulerTest, SomeKindsNeverFuse) {
  for (OpKind kind :
       {OpKind::kAlltoall, OpKind::kScatter, OpKind::kBarrier, OpKind::kAddProcessSet}) {
    Scheduler scheduler = Make(1 << 20, 0, 1 << 22);
    Signature signature = Allreduce({2});
    signature.kind = kind;
    Push(scheduler, 0, signature);
    Push(scheduler, 1, signature);
    EXPECT_EQ(Drain(scheduler), (Units{{0}, {1}}));
  }
}

TEST_F(SchedulerTest, CreditHoldsBackAndUrgentOvertakes) {
  Scheduler scheduler = Make(400, 0, 800);
  for (UnitId unit = 0; unit < 3; ++unit) Push(scheduler, unit, Allreduce({100}));
  EXPECT_EQ(Drain(scheduler), (Units{{0}, {1}}));
  EXPECT_FALSE(scheduler.CanTake());
  Push(scheduler, 9, Allreduce({100}), 1);
  scheduler.Executed(1);
  EXPECT_EQ(Drain(scheduler), (Units{{9}}));
  scheduler.Executed(2);
  scheduler.Executed(3);
  EXPECT_EQ(Drain(scheduler), (Units{{2}}));
}

TEST_F(SchedulerTest, LimitsMayChangeAtAnyTime) {
  Scheduler scheduler = Make(4096, 4096, 1 << 20);
  Push(scheduler, 0, Allreduce({5000}));  // is split
  Push(scheduler, 1, Allreduce({100}));
  std::vector<int64_t> counts;
  const auto take = [&] {
    for (const Bucket& bucket : scheduler.Take()) {
      for (const Part& part : bucket.parts) {
        EXPECT_EQ(part.unit == 0, !part.whole);
        if (part.unit != 0) continue;
        EXPECT_EQ(part.begin, std::accumulate(counts.begin(), counts.end(), int64_t{0}));
        counts.push_back(part.count);
      }
      scheduler.Published(1, bucket.bytes);
      scheduler.Executed(1);
    }
  };
  take();
  scheduler.SetLimits(FusionPlanner({1 << 20, 1 << 20}), 1 << 20);  // would not be split
  while (scheduler.CanTake()) take();
  EXPECT_EQ(counts, (std::vector<int64_t>{1024, 3976}));
  // A tensor that arrives while it would stay whole stays whole, even if later ones would be split.
  Push(scheduler, 1, Allreduce({5000}));
  scheduler.SetLimits(FusionPlanner({4096, 4096}), 8192);
  take();
  EXPECT_TRUE(scheduler.empty());
}

TEST_F(SchedulerTest, OneBucketBeyondTheCreditMayAlwaysGo) {
  Scheduler scheduler = Make(100, 0, 100);
  Push(scheduler, 0, Allreduce({1000}));
  Push(scheduler, 1, Allreduce({1}));
  EXPECT_EQ(Drain(scheduler), (Units{{0}}));
  scheduler.Executed(1);
  EXPECT_EQ(Drain(scheduler), (Units{{1}}));
}

TEST_F(SchedulerTest, UrgentUnitsOvertakeBetweenPartitions) {
  Scheduler scheduler = Make(256, 256, 512);
  Push(scheduler, 0, Allreduce({64 * 4}));
  EXPECT_EQ(Drain(scheduler), (Units{{0}, {0}}));
  Push(scheduler, 1, Allreduce({1}), 1);
  scheduler.Executed(1);
  EXPECT_EQ(Drain(scheduler), (Units{{1}}));  // 252 bytes of credit are left
  scheduler.Executed(2);
  scheduler.Executed(3);
  EXPECT_EQ(Drain(scheduler), (Units{{0}, {0}}));
}

TEST_F(SchedulerTest, CutsAreAlignedAndCoverTheTensor) {
  const FusionPlanner planner({1000, 1000});
  const Signature signature = Allreduce({1000});
  ASSERT_TRUE(planner.IsCut(signature));
  int64_t begin = 0;
  for (Part part = planner.Cut(0, signature, 0, 0);; part = planner.Cut(0, signature, 0, begin)) {
    EXPECT_EQ(part.begin, begin);
    EXPECT_LE(part.bytes, 1000);
    begin += part.count;
    if (part.is_last) break;
    EXPECT_EQ(begin % 64, 0);
  }
  EXPECT_EQ(begin, 1000);
}

TEST_F(SchedulerTest, AGroupOfSeveralTypesIsPublishedTogether) {
  Scheduler scheduler = Make(1 << 20, 0, 100);
  Push(scheduler, 7, Allreduce({1}));
  Signature group = Allreduce({10});
  group.tensors.push_back({DataType::kInt32, {100}});
  group.tensors.push_back({DataType::kFloat32, {1}});
  Push(scheduler, 0, group);
  Push(scheduler, 1, Allreduce({1}));
  // Unit 1 shares the bucket of 7. The group exceeds the credit, so it runs alone.
  EXPECT_EQ(Drain(scheduler), (Units{{7, 1}}));
  scheduler.Executed(1);
  const std::vector<Bucket> buckets = scheduler.Take();
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].parts[0].tensor, 1u);
  EXPECT_EQ(buckets[1].parts.size(), 2u);
  EXPECT_FALSE(buckets[0].parts[0].is_last);
  EXPECT_TRUE(buckets[1].parts[1].is_last);
  EXPECT_TRUE(scheduler.empty());
}

TEST_F(SchedulerTest, AGroupLargerThanABucketTakesSeveral) {
  Scheduler scheduler = Make(100, 0, 1000);
  Signature group = Allreduce({20});
  group.tensors.resize(3, group.tensors[0]);
  Push(scheduler, 0, group);
  EXPECT_EQ(scheduler.Take().size(), 3u);
}

TEST(FusionPlannerTest, LossyEncodingsAreCutWhereTheirGroupsEnd) {
  const FusionPlanner planner({1 << 20, 100'000});
  Signature signature{{}, {{DataType::kFloat32, {50'000}}}};
  EXPECT_EQ(planner.Cut(0, signature, 0, 0).count, 24'960);  // a multiple of 64
  signature.encoding = {EncodingKind::kInt8};
  EXPECT_EQ(planner.Cut(0, signature, 0, 0).count, 6 * kGroupElements);
  EXPECT_EQ(FusionPlanner({1 << 20, 100}).Cut(0, signature, 0, 0).count, kGroupElements);
}

}  // namespace
}  // namespace horoscale
