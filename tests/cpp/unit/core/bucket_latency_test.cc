#include "core/bucket_latency.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

constexpr double kLatency = 0.02;
constexpr double kPerByte = 1e-7;

double Time(double bytes) { return kLatency + bytes * kPerByte; }

TEST(BucketLatencyTest, NeedsTwoSizes) {
  BucketLatency latency;
  EXPECT_EQ(latency.seconds(), 0);
  for (int i = 0; i < 100; ++i) latency.OnBucket(1 << 20, Time(1 << 20));
  EXPECT_EQ(latency.seconds(), 0);
  latency.OnBucket(40, Time(40));
  EXPECT_NEAR(latency.seconds(), kLatency, 1e-6);
}

TEST(BucketLatencyTest, StaysWhileAllBucketsAreAlike) {
  BucketLatency latency;
  latency.OnBucket(1 << 24, Time(1 << 24));
  latency.OnBucket(1 << 17, Time(1 << 17));
  for (int i = 0; i < 100'000; ++i) latency.OnBucket(1 << 17, Time(1 << 17));
  EXPECT_NEAR(latency.seconds(), kLatency, 1e-6);
}

TEST(BucketLatencyTest, ALateRankChangesLittle) {
  BucketLatency latency;
  for (int i = 0; i < 50; ++i) {
    latency.OnBucket(40, i % 10 == 0 ? 5 : Time(40));
    latency.OnBucket(1 << 22, Time(1 << 22));
    if (i >= 3) {
      EXPECT_NEAR(latency.seconds(), kLatency, 1e-6) << i;
    }
  }
}

TEST(BucketLatencyTest, IsNeverNegative) {
  BucketLatency latency;
  latency.OnBucket(1 << 10, 0.001);
  latency.OnBucket(1 << 12, 1);
  EXPECT_EQ(latency.seconds(), 0);
}

}  // namespace
}  // namespace horoscale
