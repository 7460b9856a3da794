// When operations on the device end: in plan order, and before a clean shutdown.
#include <barrier>

#include "nccl/device_ranks.h"

namespace horoscale {
namespace {

using testing::Allreduce;
using testing::Call;
using testing::DeviceTest;
using testing::Double;
using testing::Enqueued;
using testing::Join;
using testing::kDeadlineSeconds;
using testing::kNotSeconds;
using testing::Moved;
using testing::OnCuda;
using testing::Ranks;
using testing::ResultOf;
using testing::RunAll;

// Callers whose streams wait for the result leave without any other wait.
TEST_F(DeviceTest, ACleanShutdownWaitsForWhatTheDeviceHasBeenGiven) {
  Ranks ranks(3);
  const int aborted = Double::Get().aborted_communicators();
  Double::Get().set_delay(1, 200'000);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    std::vector<float> data(1000, 1.0f);
    std::vector<OperationPtr> operations;
    for (const char* const name : {"first", "last"}) {
      operations.push_back(Enqueued(runtime, OnCuda(Allreduce(data, name), rank)));
      ASSERT_TRUE(runtime.WaitLaunched(operations.back(), kDeadlineSeconds).ok());
    }
    runtime.Shutdown("");
    for (const OperationPtr& operation : operations) {
      EXPECT_TRUE(operation->done.load());
      EXPECT_TRUE(operation->status.ok()) << operation->status.message();
    }
    EXPECT_EQ(data, std::vector<float>(1000, 9.0f));
  });
  EXPECT_EQ(Double::Get().aborted_communicators(), aborted);
}

TEST_F(DeviceTest, WhatFailsEndsAfterWhatTheDeviceIsAtWorkFor) {
  Ranks ranks(2);
  for (const int device : {0, 1}) Double::Get().hold(device, 1);
  std::barrier both(2);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    std::vector<float> data(100, 1.0f);
    const auto first = Enqueued(runtime, OnCuda(Allreduce(data, "first"), rank));
    ASSERT_TRUE(runtime.WaitLaunched(first, kDeadlineSeconds).ok());
    std::vector<float> other(static_cast<size_t>(rank) + 1);
    const auto mismatch = Enqueued(runtime, OnCuda(Allreduce(other, "mismatch"), rank));
    EXPECT_EQ(runtime.Wait(mismatch, kNotSeconds).code(), StatusCode::kTimeout);
    both.arrive_and_wait();
    Double::Get().hold(rank, 0);
    EXPECT_EQ(runtime.Wait(mismatch, kDeadlineSeconds).code(), StatusCode::kMismatch);
    EXPECT_TRUE(first->done.load());
  });
}

// Rank 1's first operation needs no peer, and its device is still running it when rank 0 goes on
// alone. Entries without rank 1 must still end after it.
TEST_F(DeviceTest, AJoinedRankEndsInOrderToo) {
  Ranks ranks(2);
  Double::Get().hold(1, 1);
  std::barrier second_is_done(2);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    const std::vector<float> kept(4, static_cast<float>(rank));
    const auto first = OnCuda(Moved(OpKind::kAlltoall, kept, 1), rank);
    first->splits = rank == 0 ? std::vector<int64_t>{4, 0} : std::vector<int64_t>{0, 4};
    ASSERT_TRUE(runtime.Enqueue(first, false).ok());
    ASSERT_TRUE(runtime.WaitLaunched(first, kDeadlineSeconds).ok());
    std::vector<float> data(100, 1.0f);
    if (rank == 0) {
      ASSERT_TRUE(runtime.Wait(first, kDeadlineSeconds).ok());
    }
    OperationPtr join;
    if (rank == 1) join = Enqueued(runtime, Join());
    if (rank == 0) {
      ASSERT_TRUE(Call(runtime, OnCuda(Allreduce(data, "second"), rank)).ok());
    }
    second_is_done.arrive_and_wait();
    if (rank == 0) join = Enqueued(runtime, Join());
    if (rank == 1) {
      EXPECT_EQ(runtime.Wait(join, kNotSeconds).code(), StatusCode::kTimeout);
      const std::string metrics = runtime.MetricsJson();
      EXPECT_NE(metrics.find("\"device_buckets\": 1,"), std::string::npos) << metrics;
      Double::Get().hold(1, 0);
    }
    ASSERT_TRUE(runtime.Wait(join, kDeadlineSeconds).ok());
    EXPECT_TRUE(first->done.load());
    EXPECT_EQ(ResultOf(*first), kept);
    EXPECT_EQ(data, std::vector<float>(100, 1.0f));
  });
}

// The time that a bucket waits for the device is not a measure of the network.
TEST_F(DeviceTest, ADeviceThatIsBusyMakesNoBucketSmaller) {
  Ranks ranks(2);
  for (const int device : {0, 1}) Double::Get().set_delay(device, 200'000);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    std::vector<float> data(1 << 18, 1.0f);  // 1 MiB: would look like 5 MB/s
    for (const char* const name : {"first", "second"}) {
      ASSERT_TRUE(Call(runtime, OnCuda(Allreduce(data, name), rank)).ok());
    }
    const std::string metrics = runtime.MetricsJson();
    EXPECT_NE(metrics.find("\"device_buckets\": 2,"), std::string::npos) << metrics;
  });
}

}  // namespace
}  // namespace horoscale
