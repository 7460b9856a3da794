// The cost model, and the profile of a step on which it is based.

#include "core/cost_model.h"

#include <gtest/gtest.h>

#include <memory>

#include "core/limit_steps.h"
#include "unit/core/core_cluster.h"

namespace horoscale {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr double kLatency = 0.001;
constexpr double kRate = 100.0 * kMiB;  // bytes per second

NetworkState Network(double latency = kLatency) {
  return {.bytes_per_second = kRate, .latency_seconds = latency, .coding_per_second = 2e9};
}

// So many operations of 1 MiB, one in each millisecond; the most urgent one last. Then the
// computation takes another 10 ms.
ProfiledStep Step(int operations, double seconds) {
  ProfiledStep step;
  for (int i = 0; i < operations; ++i) {
    step.operations.push_back(
        {.signature = std::make_shared<const Signature>(Allreduce({kMiB / 4})),
         .priority = i,
         .bytes = kMiB,
         .ready = 0.001 * i});
  }
  step.computed_seconds = 0.001 * (operations - 1) + 0.010;
  step.seconds = seconds;
  return step;
}

TEST(CostModelTest, OneOperationTakesLatencyAndBytes) {
  const CostModel model(Step(1, 1), Network(), Pace(), Limits());
  EXPECT_EQ(model.overlap(), 0);
  EXPECT_NEAR(model.Predict(Limits()), 0.001 + 0.010 + 0.010, 1e-9);
}

TEST(CostModelTest, AnEncodedOperationSendsLessAndIsCoded) {
  ProfiledStep step = Step(1, 1);
  step.operations[0].chosen = Encoding{EncodingKind::kInt8};
  const CostModel model(step, Network(), Pace(), Limits());
  EXPECT_NEAR(model.Predict(Limits()), 0.001 + 0.010 * 66 / 256 + kMiB / 2e9 + 0.010, 1e-6);
}

TEST(CostModelTest, OverlapPredictsTheObservedStep) {
  // A bucket for each operation.
  const Limits limits = {kMiB, kMiB, 2 * kMiB, 0.012};
  const CostModel serial(Step(20, 10), Network(), Pace(), limits);
  EXPECT_EQ(serial.overlap(), 0);
  const double longest = serial.Predict(limits);
  const CostModel overlapped(Step(20, 0), Network(), Pace(), limits);
  EXPECT_EQ(overlapped.overlap(), 1);
  const double shortest = overlapped.Predict(limits);
  ASSERT_LT(shortest, longest);
  const double between = (shortest + longest) / 2;
  const CostModel model(Step(20, between), Network(), Pace(), limits);
  EXPECT_NEAR(model.Predict(limits), between, 1e-9);
}

TEST(CostModelTest, ALatencyCallsForLargerBuckets) {
  const Limits small = {.fusion_threshold_bytes = kMiB, .partition_bytes = kMiB};
  const CostModel model(Step(64, 10), Network(0.02), Pace(), small);
  const Limits best = model.Best(small);
  EXPECT_GT(best.fusion_threshold_bytes, small.fusion_threshold_bytes);
  EXPECT_LT(model.Predict(best), 0.5 * model.Predict(small));
}

TEST(CostModelTest, ThePaceBoundsWhatHasAnEffect) {
  Pace pace;
  for (int i = 0; i < 10; ++i) pace.OnExecuted(kMiB, 0.1);
  const CostModel model(Step(8, 10), Network(0.02), pace, Limits());
  Limits other;
  other.fusion_threshold_bytes = 8 * kMiB;
  EXPECT_EQ(model.Predict(other), model.Predict(Limits()));
  EXPECT_GT(model.Best(Limits()).pace_seconds, Limits().pace_seconds);
}

TEST(CostModelTest, WithoutAGainTheLimitsStay) {
  const CostModel model(Step(1, 1), Network(), Pace(), Limits());
  EXPECT_EQ(model.Best(Limits()), Limits());
}

TEST(LimitStepsTest, WhatIsSwitchedOffStaysOff) {
  for (const Limits& limits : LimitGrid({0, 0, 64 * kMiB, 0})) {
    EXPECT_EQ(limits.fusion_threshold_bytes, 0);
    EXPECT_EQ(limits.partition_bytes, 0);
    EXPECT_EQ(limits.pace_seconds, 0);
  }
}

TEST(LimitStepsTest, TheGridBeginsWithTheGivenLimits) {
  const std::vector<Limits> grid = LimitGrid(Limits());
  EXPECT_EQ(grid[0], Limits());
  EXPECT_GT(grid.size(), 100u);
}

StepOperation Operation(int priority) { return {.priority = priority, .bytes = 4}; }

TEST(StepProfileTest, AStepBeginsWithTheFirstNameThatRecurs) {
  StepProfile profile;
  profile.OnReady("once", Operation(0), 0);
  profile.OnReady("a", Operation(1), 1);
  profile.OnReady("", Operation(2), 2);
  EXPECT_FALSE(profile.Usual());
  profile.OnBlocked(0.25);
  profile.OnReady("b", Operation(3), 3);
  profile.OnBlocked(0.5);
  profile.OnReady("a", Operation(1), 5);
  const auto step = profile.Usual();
  ASSERT_TRUE(step);
  ASSERT_EQ(step->operations.size(), 3u);
  EXPECT_EQ(step->seconds, 4);
  EXPECT_EQ(step->computed_seconds, 3.25);
  EXPECT_EQ(step->operations[0].priority, 1);
  EXPECT_EQ(step->operations[0].ready, 0);
  EXPECT_EQ(step->operations[2].ready, 1.75);
}

TEST(StepProfileTest, TheUsualStepIsTheMedian) {
  StepProfile profile;
  double now = 0;
  for (const double seconds : {1, 9, 2, 3, 2}) {
    profile.OnReady("a", Operation(0), now);
    now += seconds;
  }
  profile.OnReady("a", Operation(0), now);
  EXPECT_EQ(profile.Usual()->seconds, 2);
}

}  // namespace
}  // namespace horoscale
