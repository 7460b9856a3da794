#include "core/autotuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/step_clock.h"

namespace horoscale {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr Limits kGiven = {128 * kMiB, 16 * kMiB, 64 * kMiB, 0.012};

using Cost = std::function<double(const Limits&)>;

// Milliseconds that grow with the distance from the best value, in powers of two.
double Apart(int64_t value, int64_t best) {
  return std::abs(std::log2(static_cast<double>(value)) - std::log2(static_cast<double>(best)));
}

const std::vector<std::pair<std::string, Cost>>& Costs() {
  static const std::vector<std::pair<std::string, Cost>> costs = {
      {"flat", [](const Limits&) { return 0.1; }},
      {"small credit",
       [](const Limits& l) { return 0.1 + 0.004 * Apart(l.credit_bytes, 4 * kMiB); }},
      {"large credit",
       [](const Limits& l) { return 0.1 + 0.004 * Apart(l.credit_bytes, 256 * kMiB); }},
      {"small partitions",
       [](const Limits& l) { return 0.05 + 0.005 * Apart(l.partition_bytes, kMiB); }},
      {"small buckets",
       [](const Limits& l) { return 0.05 + 0.005 * Apart(l.fusion_threshold_bytes, 2 * kMiB); }},
      {"all", [](const Limits& l) {
         return 0.1 + 0.003 * Apart(l.credit_bytes, 16 * kMiB) +
                0.004 * Apart(l.partition_bytes, kMiB) +
                0.002 * Apart(l.fusion_threshold_bytes, 2 * kMiB);
       }}};
  return costs;
}

// Steps that take `cost`, with noise, outliers and drift.
class Job {
 public:
  Job(Cost cost, uint64_t seed, double noise, double drift = 0)
      : cost_(std::move(cost)), random_(seed), noise_(noise), drift_(drift) {}

  double Step(const Limits& limits) {
    double seconds = cost_(limits) * (1 + noise_ * std::abs(normal_(random_)));
    if (random_() % 25 == 0) seconds *= 5;
    return seconds * (1 + drift_ * static_cast<double>(step_++));
  }

 private:
  const Cost cost_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  const double noise_;
  const double drift_;
  int step_ = 0;
};

Limits Tune(Job job, uint64_t* steps = nullptr) {
  Autotuner tuner(kGiven);
  uint64_t taken = 0;
  for (; !tuner.finished(); ++taken) {
    EXPECT_LE(taken, Autotuner::kMaxSteps);
    if (taken > Autotuner::kMaxSteps) break;
    tuner.OnStep(job.Step(tuner.limits()));
  }
  if (steps != nullptr) *steps = taken;
  return tuner.limits();
}

TEST(AutotunerTest, FindsTheBestWithoutNoise) {
  for (const auto& [name, cost] : Costs()) {
    const Limits found = Tune({cost, 1, 0.0});
    for (int64_t credit : {4, 16, 64, 256}) {
      for (int64_t partition : {1, 4, 16, 64}) {
        for (int64_t fusion : {2, 8, 32, 128}) {
          const Limits other = {fusion * kMiB, partition * kMiB, credit * kMiB, 0.012};
          // A search step is a factor of four; gains below 2 % are ignored.
          EXPECT_LE(cost(found), cost(other) * 1.06)
              << name << ": " << credit << " " << partition << " " << fusion;
        }
      }
    }
  }
}

TEST(AutotunerTest, NeverEndsSlowerThanItBegan) {
  for (const auto& [name, cost] : Costs()) {
    int improved = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      for (double noise : {0.02, 0.1, 0.3}) {
        const Limits found = Tune({cost, seed, noise});
        EXPECT_LE(cost(found), cost(kGiven)) << name << " seed " << seed << " noise " << noise;
        improved += cost(found) < cost(kGiven) * 0.97 ? 1 : 0;
      }
    }
    if (name != "flat") {
      EXPECT_GT(improved, 300) << name;
    }
  }
}

TEST(AutotunerTest, ADriftIsNoImprovement) {
  for (double drift : {-0.001, 0.003, 0.01}) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      EXPECT_EQ(Tune({Costs()[0].second, seed, 0.0, drift}), kGiven) << drift;
    }
  }
}

TEST(AutotunerTest, EndsSoonWhereNothingHelpsAndTellsWhatItDid) {
  uint64_t steps = 0;
  EXPECT_EQ(Tune({Costs()[0].second, 3, 0.0}, &steps), kGiven);
  EXPECT_LE(steps, 120u);

  Autotuner tuner(kGiven);
  std::vector<Autotuner::Record> records;
  while (!tuner.finished()) {
    tuner.OnStep(0.1);
    for (const Autotuner::Record& record : tuner.TakeRecords()) records.push_back(record);
  }
  EXPECT_EQ(records.front().what, "reference");
  EXPECT_EQ(records.front().limits, kGiven);
  EXPECT_EQ(records[1].what, "candidate");
  EXPECT_NE(records[1].limits, kGiven);
  EXPECT_EQ(records.back().what, "initial limits kept");
  EXPECT_EQ(records.back().limits, kGiven);
  EXPECT_TRUE(records.back().is_last);
  EXPECT_EQ(records.back().saved, 0);
}

TEST(AutotunerTest, TheVerdictTellsWhatIsSaved) {
  Autotuner tuner(kGiven);
  std::vector<Autotuner::Record> records;
  while (!tuner.finished()) {
    tuner.OnStep(tuner.limits().credit_bytes < kGiven.credit_bytes ? 0.08 : 0.1);
    for (const Autotuner::Record& record : tuner.TakeRecords()) records.push_back(record);
  }
  EXPECT_EQ(records.back().what, "chosen");
  EXPECT_NEAR(records.back().saved, 0.2, 1e-9);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].is_last, i + 1 == records.size());
  }
}

TEST(AutotunerTest, WhatIsSwitchedOffStaysOff) {
  Autotuner tuner({0, 0, 64 * kMiB, 0.012});
  std::mt19937_64 random(1);
  while (!tuner.finished()) {
    EXPECT_EQ(tuner.limits().fusion_threshold_bytes, 0);
    EXPECT_EQ(tuner.limits().partition_bytes, 0);
    tuner.OnStep(static_cast<double>(random() % 100));
  }
}

Autotuner::Prediction Predict(const Limits& best, Cost seconds) {
  return {.best = best, .seconds = std::move(seconds), .why = "measured"};
}

TEST(AutotunerTest, APredictionIsTriedFirst) {
  const Cost cost = Costs()[5].second;
  const Limits best = {2 * kMiB, kMiB, 16 * kMiB, 0.012};
  Autotuner tuner(kGiven, Predict(best, cost), 12);
  std::vector<Autotuner::Record> records;
  while (!tuner.finished()) {
    tuner.OnStep(cost(tuner.limits()));
    for (const Autotuner::Record& record : tuner.TakeRecords()) records.push_back(record);
  }
  EXPECT_EQ(tuner.limits(), best);
  EXPECT_LE(records.back().step, 12u + 120u) << "the search ends soon";
  EXPECT_EQ(records[0].what, "predicted");
  EXPECT_EQ(records[0].limits, kGiven);
  EXPECT_EQ(records[0].why, "measured");
  EXPECT_EQ(records[1].what, "predicted");
  EXPECT_EQ(records[1].limits, best);
  EXPECT_DOUBLE_EQ(records[1].predicted_seconds, cost(best));
  EXPECT_EQ(records[2].what, "reference");
  EXPECT_DOUBLE_EQ(records[2].predicted_seconds, records[2].seconds);
}

TEST(AutotunerTest, AWrongPredictionDoesNoHarm) {
  for (const auto& [name, cost] : Costs()) {
    const Limits wrong = {8 * kMiB, 64 * kMiB, kMiB, 0.012};
    const auto seconds = [&](const Limits& limits) { return limits == wrong ? 0.001 : 1.0; };
    Autotuner tuner(kGiven, Predict(wrong, seconds));
    uint64_t steps = 0;
    for (; !tuner.finished() && steps <= Autotuner::kMaxSteps; ++steps) {
      tuner.OnStep(cost(tuner.limits()));
    }
    EXPECT_TRUE(tuner.finished()) << name;
    EXPECT_LE(cost(tuner.limits()), cost(kGiven)) << name;
  }
}

TEST(AutotunerTest, WhereTheModelExpectsNothingItEndsAtOnce) {
  Autotuner tuner(kGiven, Predict(kGiven, [](const Limits&) { return 0.1; }), 6);
  EXPECT_TRUE(tuner.finished());
  const std::vector<Autotuner::Record> records = tuner.TakeRecords();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].what, "predicted");
  EXPECT_EQ(records[1].what, "initial limits kept");
  EXPECT_TRUE(records[1].is_last);
}

TEST(AutotunerTest, DisturbancesDoNotDelayTheEndForever) {
  Autotuner tuner(kGiven);
  uint64_t steps = 0;
  for (; !tuner.finished() && steps <= Autotuner::kMaxSteps; ++steps) {
    tuner.OnStep(Costs()[5].second(tuner.limits()));
    if (steps % 7 == 0) tuner.OnDisturbed();
  }
  EXPECT_TRUE(tuner.finished());
}

PlanEntry Entry(const std::vector<uint32_t>& slots) {
  PlanEntry entry;
  for (uint32_t slot : slots) entry.items.emplace_back().slot = slot;
  return entry;
}

TEST(StepClockTest, TheFirstNameThatComesAgainCountsSteps) {
  StepClock clock;
  EXPECT_FALSE(clock.OnEntry(Entry({9}), 0));  // seen once, at the start
  EXPECT_FALSE(clock.OnEntry(Entry({1, 2}), 1));
  EXPECT_FALSE(clock.OnEntry(Entry({3}), 2));
  EXPECT_FALSE(clock.OnEntry(Entry({2}), 10));
  EXPECT_FALSE(clock.OnEntry(Entry({1, 3}), 11));
  EXPECT_DOUBLE_EQ(clock.OnEntry(Entry({1, 3, 2}), 13).value(), 3.0);
  EXPECT_DOUBLE_EQ(clock.OnEntry(Entry({2}), 14).value(), 1.0);
}

TEST(StepClockTest, APartOfATensorIsNoStep) {
  StepClock clock;
  PlanEntry entry = Entry({1});
  entry.items[0].whole = false;
  EXPECT_FALSE(clock.OnEntry(entry, 1));
  entry.items[0].begin = 64;
  EXPECT_FALSE(clock.OnEntry(entry, 2));
  entry.items[0].begin = 0;
  EXPECT_FALSE(clock.OnEntry(entry, 3));  // reset: steps are counted from here
  EXPECT_DOUBLE_EQ(clock.OnEntry(entry, 5).value(), 2.0);
}

TEST(StepClockTest, UnnamedCallsAndFailuresAreNoSteps) {
  StepClock clock;
  PlanEntry unnamed = Entry({1});
  unnamed.items[0].index = 4;
  PlanEntry failure;
  failure.type = PlanEntry::Type::kFail;
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(clock.OnEntry(unnamed, i));
    EXPECT_FALSE(clock.OnEntry(failure, i));
  }
}

TEST(StepClockTest, AnotherNameTakesOverWhereTheFirstIsGone) {
  StepClock clock;
  EXPECT_FALSE(clock.OnEntry(Entry({1}), 0));
  EXPECT_FALSE(clock.OnEntry(Entry({1}), 1));
  int told = 0;
  for (int i = 0; i < 200; ++i) told += clock.OnEntry(Entry({2}), 10 + i).has_value() ? 1 : 0;
  EXPECT_EQ(told, 195);
}

TEST(StepClockTest, ANameThatComesOftenInEachStepDoesNotTakeOver) {
  StepClock clock;
  EXPECT_FALSE(clock.OnEntry(Entry({1}), 0));
  EXPECT_FALSE(clock.OnEntry(Entry({1}), 1));
  double now = 1;
  const auto step = [&](int others) {
    for (int i = 0; i < others; ++i) EXPECT_FALSE(clock.OnEntry(Entry({2}), now)) << i;
    return clock.OnEntry(Entry({1}), now += 10);
  };
  EXPECT_DOUBLE_EQ(step(45).value(), 10.0);
  EXPECT_DOUBLE_EQ(step(800).value(), 10.0);
  EXPECT_DOUBLE_EQ(step(150).value(), 10.0);
}

}  // namespace
}  // namespace horoscale
