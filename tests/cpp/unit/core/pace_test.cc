#include "core/pace.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr Limits kGiven = {128 * kMiB, 16 * kMiB, 64 * kMiB, 0.012};

// Simulates a network of this bandwidth, for `buckets` buckets of the largest allowed size.
Limits After(Pace& pace, double bytes_per_second, int buckets) {
  for (int i = 0; i < buckets; ++i) {
    const int64_t bytes = pace.Of(kGiven).partition_bytes;
    pace.OnExecuted(bytes, static_cast<double>(bytes) / bytes_per_second);
  }
  return pace.Of(kGiven);
}

TEST(PaceTest, TheLimitsStandUntilSomethingIsKnown) {
  Pace pace;
  EXPECT_EQ(pace.Of(kGiven), kGiven);
  EXPECT_FALSE(pace.OnExecuted(4096, 1.0)) << "small ones tell nothing";
  EXPECT_EQ(pace.Of(kGiven), kGiven);
}

TEST(PaceTest, OnASlowNetworkBucketsAreSmall) {
  Pace pace;
  const Limits limits = After(pace, 25e6, 1);
  EXPECT_EQ(limits.partition_bytes, kMiB / 4);
  EXPECT_EQ(limits.fusion_threshold_bytes, kMiB / 4);
  EXPECT_EQ(limits.credit_bytes, kGiven.credit_bytes);
}

TEST(PaceTest, TheyAreNeverTiny) {
  Pace pace;
  EXPECT_EQ(After(pace, 1e3, 5).partition_bytes, kMiB / 8);
}

TEST(PaceTest, AFastNetworkChangesNothing) {
  Pace pace;
  EXPECT_EQ(After(pace, 20e9, 5), kGiven);
}

TEST(PaceTest, TensorsThatAreNeverCutStillArent) {
  Pace pace;
  After(pace, 25e6, 1);
  EXPECT_EQ(pace.Of({128 * kMiB, 0, 64 * kMiB, 0.012}).partition_bytes, 0);
}

TEST(PaceTest, ItFollowsANetworkThatBecomesFaster) {
  Pace pace;
  After(pace, 25e6, 20);
  EXPECT_EQ(After(pace, 20e9, 200), kGiven);
}

TEST(PaceTest, WhatSwaysALittleChangesNothing) {
  Pace pace;
  After(pace, 25e6, 20);
  int changes = 0;
  for (int i = 0; i < 200; ++i) {
    const double rate = i % 2 == 0 ? 20e6 : 28e6;
    changes += pace.OnExecuted(kMiB / 4, static_cast<double>(kMiB) / 4 / rate) ? 1 : 0;
  }
  EXPECT_EQ(changes, 0);
}

TEST(PaceTest, APaceOfTheUserCounts) {
  Pace pace;
  After(pace, 25e6, 20);
  Limits limits = kGiven;
  limits.pace_seconds = 4 * kGiven.pace_seconds;
  EXPECT_EQ(pace.Of(limits).partition_bytes, kMiB);
  limits.pace_seconds = 0;
  EXPECT_EQ(pace.Of(limits), limits);
}

TEST(PaceTest, ALatencyDoesNotMakeBucketsSmall) {
  Pace pace;
  for (int i = 0; i < 200; ++i) {
    pace.OnExecuted(40, 0.02);
    const int64_t bytes = pace.Of(kGiven).partition_bytes;
    pace.OnExecuted(bytes, 0.02 + static_cast<double>(bytes) / 125e6);
  }
  EXPECT_NEAR(pace.latency_seconds(), 0.02, 1e-6);
  EXPECT_GE(pace.Of(kGiven).partition_bytes, 8 * kMiB);
}

}  // namespace
}  // namespace horoscale
