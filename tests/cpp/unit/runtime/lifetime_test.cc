// Callbacks, shutdown, and queries after shutdown.
#include <atomic>

#include "platform/clock.h"
#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::Allreduce;
using testing::Barrier;
using testing::Call;
using testing::kDeadlineSeconds;
using testing::Ranks;

TEST(Lifetime, ACallbackMayEnqueueTheNextOperation) {
  constexpr int kSteps = 50;
  Ranks ranks(3);
  ranks.Run([](int, Runtime& runtime) {
    std::vector<float> data(100, 1.0f);
    std::atomic<int> steps{0};
    std::function<void(const Status&)> next = [&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.message();
      if (steps.load() + 1 < kSteps) {
        const auto operation = Allreduce(data, "x");
        operation->callback = next;
        EXPECT_TRUE(runtime.Enqueue(operation, false).ok());
      }
      steps.fetch_add(1);
      steps.notify_all();
    };
    const auto first = Allreduce(data, "x");
    first->callback = next;
    ASSERT_TRUE(runtime.Enqueue(first, false).ok());
    for (int seen = 0; seen < kSteps; seen = steps.load()) steps.wait(seen);
  });
}

TEST(Lifetime, ACallbackMayShutDown) {
  Ranks ranks(2);
  ranks.Run([](int, Runtime& runtime) {
    std::atomic<bool> over{false};
    const auto barrier = Barrier();
    barrier->callback = [&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.message();
      runtime.Shutdown("");
      over.store(true);
      over.notify_all();
    };
    ASSERT_TRUE(runtime.Enqueue(barrier, false).ok());  // the progress thread calls it
    over.wait(false);
    EXPECT_EQ(Call(runtime, Barrier()).code(), StatusCode::kShutdown);
  });
}

TEST(Lifetime, SeveralThreadsMayShutDown) {
  Ranks ranks(2);
  std::vector<float> data(10);
  const auto pending = Allreduce(data);
  ASSERT_TRUE(ranks.runtime(0).Enqueue(pending, false).ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { ranks.runtime(0).Shutdown(""); });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(pending->done.load());
  EXPECT_EQ(pending->status.code(), StatusCode::kShutdown);
}

TEST(Lifetime, MetricsStandAfterShutdown) {
  Ranks ranks(1);
  Runtime& runtime = ranks.runtime(0);
  ASSERT_TRUE(Call(runtime, Barrier()).ok());
  runtime.Shutdown("");
  const double before = MonotonicSeconds();
  EXPECT_NE(runtime.MetricsJson().find("\"operations\": 1"), std::string::npos)
      << runtime.MetricsJson();
  EXPECT_LT(MonotonicSeconds() - before, 0.9) << "it waited for an engine that has ended";
}

TEST(Lifetime, EightRanksAtOnce) {
  Ranks ranks(8);
  ranks.Run([](int rank, Runtime& runtime) {
    std::vector<OperationPtr> pending;
    std::vector<std::vector<float>> data(20, std::vector<float>(5000, static_cast<float>(rank)));
    for (int step = 0; step < 10; ++step) {
      pending.clear();
      for (size_t i = 0; i < data.size(); ++i) {
        data[i].assign(5000, 1.0f);
        pending.push_back(Allreduce(data[i], "t" + std::to_string(i)));
        ASSERT_TRUE(runtime.Enqueue(pending.back(), false).ok());
      }
      for (const auto& operation : pending) {
        ASSERT_TRUE(runtime.Wait(operation, kDeadlineSeconds).ok());
      }
      for (const auto& values : data) ASSERT_EQ(values.back(), 8.0f);
    }
  });
}

}  // namespace
}  // namespace horoscale
