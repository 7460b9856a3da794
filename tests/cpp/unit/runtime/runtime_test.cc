#include "runtime/runtime.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <random>
#include <thread>

#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Allreduce;
using testing::Barrier;
using testing::Call;
using testing::kDeadlineSeconds;
using testing::Ranks;
using testing::RemoveSet;

float SumOfRanks(int size) { return static_cast<float>(size * (size - 1) / 2); }

class RuntimeTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, RuntimeTest, ::testing::Values(1, 2, 3, 5),
                         [](const auto& test) { return "n" + std::to_string(test.param); });

TEST_P(RuntimeTest, BlockingCallsGiveTheSumOnEveryRank) {
  Ranks ranks(GetParam());
  ranks.Run([&](int rank, Runtime& runtime) {
    for (int step = 0; step < 50; ++step) {
      std::vector<float> data(1000, static_cast<float>(rank + step));
      ASSERT_TRUE(Call(runtime, Allreduce(data, "x")).ok());
      const float expected = SumOfRanks(ranks.size()) + static_cast<float>(ranks.size() * step);
      EXPECT_EQ(data, std::vector<float>(1000, expected));
    }
  });
}

TEST_P(RuntimeTest, AsynchronousCallsInADifferentOrderOnEveryRank) {
  Ranks ranks(GetParam());
  constexpr int kTensors = 40;
  ranks.Run([&](int rank, Runtime& runtime) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> data(kTensors);
      std::vector<int> order(kTensors);
      for (int i = 0; i < kTensors; ++i) {
        order[static_cast<size_t>(i)] = i;
        data[static_cast<size_t>(i)].assign(static_cast<size_t>(i * 97), static_cast<float>(rank));
      }
      std::shuffle(order.begin(), order.end(), random);
      std::vector<OperationPtr> operations;
      for (const int i : order) {
        operations.push_back(Allreduce(data[static_cast<size_t>(i)], "t" + std::to_string(i)));
        ASSERT_TRUE(runtime.Enqueue(operations.back(), false).ok());
      }
      for (const auto& operation : operations) {
        ASSERT_TRUE(runtime.Wait(operation, kDeadlineSeconds).ok());
      }
      for (const auto& values : data) {
        for (const float value : values) ASSERT_EQ(value, SumOfRanks(ranks.size()));
      }
    }
  });
}

// 400 KB from each of two ranks: a second one would exceed the bucket.
TEST(RuntimeAllgather, RowsCountForTheBucket) {
  Config config;
  config.fusion_threshold_bytes = 1 << 20;
  Ranks ranks(2, config);
  ranks.Run([](int, Runtime& runtime) {
    const std::vector<float> data(100'000, 1.0f);
    std::vector<OperationPtr> operations;
    for (int i = 0; i < 6; ++i) {
      const auto operation = std::make_shared<Operation>();
      operation->request.name = "g" + std::to_string(i);
      operation->request.signature.kind = OpKind::kAllgather;
      operation->request.signature.tensors = {{DataType::kFloat32, {kFreeDimension}}};
      operation->tensors = {{reinterpret_cast<const std::byte*>(data.data()), nullptr,
                             static_cast<int64_t>(data.size()), sizeof(float)}};
      ASSERT_TRUE(runtime.Enqueue(operation, true).ok());
      operations.push_back(operation);
    }
    for (const OperationPtr& operation : operations) {
      ASSERT_TRUE(runtime.Wait(operation, kDeadlineSeconds).ok());
      EXPECT_EQ(operation->bucket_tensors, 1u);
    }
  });
}

TEST_P(RuntimeTest, TheProgressThreadFinishesWhatNobodyWaitsFor) {
  Ranks ranks(GetParam());
  ranks.Run([&](int, Runtime& runtime) {
    std::vector<float> data(10, 1.0f);
    std::atomic<bool> called{false};
    const auto operation = Allreduce(data);
    operation->callback = [&](const Status& status) {
      EXPECT_TRUE(status.ok());
      called.store(true);
      called.notify_all();
    };
    ASSERT_TRUE(runtime.Enqueue(operation, false).ok());
    called.wait(false);
    EXPECT_EQ(data.front(), static_cast<float>(ranks.size()));
  });
}

TEST_P(RuntimeTest, SeveralThreadsOfARankWaitAtOnce) {
  Ranks ranks(GetParam());
  ranks.Run([&](int rank, Runtime& runtime) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int step = 0; step < 20; ++step) {
          std::vector<float> data(100, static_cast<float>(rank));
          ASSERT_TRUE(Call(runtime, Allreduce(data, "thread" + std::to_string(t))).ok());
          ASSERT_EQ(data.back(), SumOfRanks(ranks.size()));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Runtime, ADuplicateNameIsRefusedAndTheFirstGoesOn) {
  Ranks ranks(2);
  ranks.Run([](int rank, Runtime& runtime) {
    std::vector<float> first(4, 1.0f);
    std::vector<float> second(4, 1.0f);
    const auto operation = Allreduce(first, "x");
    if (rank == 0) {
      ASSERT_TRUE(runtime.Enqueue(operation, false).ok());
      const Status status = runtime.Enqueue(Allreduce(second, "x"), false);
      EXPECT_EQ(status.code(), StatusCode::kDuplicateName);
      ASSERT_TRUE(runtime.Wait(operation, kDeadlineSeconds).ok());
    } else {
      ASSERT_TRUE(Call(runtime, operation).ok());
    }
    EXPECT_EQ(first, std::vector<float>(4, 2.0f));
    EXPECT_TRUE(Call(runtime, Allreduce(second, "x")).ok());
  });
}

TEST(Runtime, AMismatchIsAnErrorOnEveryRankAndTheRuntimeGoesOn) {
  Ranks ranks(3);
  ranks.Run([](int rank, Runtime& runtime) {
    std::vector<float> data(rank == 1 ? 5 : 4, 1.0f);
    const Status status = Call(runtime, Allreduce(data, "weights"));
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_NE(status.message().find("weights"), std::string::npos) << status.message();
    EXPECT_EQ(status.detail().tensor, "weights");
    std::vector<float> good(4, 1.0f);
    ASSERT_TRUE(Call(runtime, Allreduce(good, "weights")).ok());
    EXPECT_EQ(good.front(), 3.0f);
  });
}

TEST(Runtime, ALostRankFailsPendingAndLaterOperations) {
  Ranks ranks(3);
  std::barrier<> met(3);
  ranks.Run([&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, Barrier()).ok());
    met.arrive_and_wait();
    if (rank == 1) return ranks.fabric().Kill(1);
    std::vector<float> data(10, 1.0f);
    const Status pending = Call(runtime, Allreduce(data, "gradient"));
    EXPECT_EQ(pending.code(), StatusCode::kRankFailed);
    EXPECT_EQ(pending.detail().ranks, std::vector<int>{1});
    EXPECT_EQ(pending.detail().tensor, "gradient");
    const Status later = Call(runtime, Allreduce(data, "next"));
    EXPECT_EQ(later.code(), StatusCode::kRankFailed);
    EXPECT_EQ(later.detail().ranks, std::vector<int>{1});
  });
}

TEST(Runtime, ARankThatLeavesRightAfterItsLastOperationHarmsNobody) {
  for (int repetition = 0; repetition < 20; ++repetition) {
    Ranks ranks(3);
    ranks.Run([](int rank, Runtime& runtime) {
      std::vector<float> data(100'000, static_cast<float>(rank));
      const Status status = Call(runtime, Allreduce(data));
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(data.front(), 3.0f);
      EXPECT_EQ(data.back(), 3.0f);
      runtime.Shutdown("");
    });
  }
}

TEST(Runtime, SurvivorsNameTheFirstCause) {
  Ranks ranks(3);
  ranks.Run([](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, Barrier()).ok());
    if (rank == 2) return runtime.Shutdown("ValueError: no data");
    std::vector<float> data(4);
    const Status status = Call(runtime, Allreduce(data));
    EXPECT_EQ(status.code(), StatusCode::kRankFailed);
    EXPECT_EQ(status.detail().ranks, std::vector<int>{2}) << status.message();
    EXPECT_NE(status.message().find("ValueError: no data"), std::string::npos);
    runtime.Shutdown("RankFailedError");  // a failed rank passes on the first cause
  });
}

TEST(Runtime, ShutdownFailsWhatIsPendingAndEverythingLater) {
  Ranks ranks(2);
  Runtime& runtime = ranks.runtime(0);
  std::vector<float> data(4);
  const auto operation = Allreduce(data);
  ASSERT_TRUE(runtime.Enqueue(operation, false).ok());
  std::thread waiter(
      [&] { EXPECT_EQ(runtime.Wait(operation, kDeadlineSeconds).code(), StatusCode::kShutdown); });
  runtime.Shutdown("");
  waiter.join();
  EXPECT_EQ(runtime.Enqueue(Allreduce(data), false).code(), StatusCode::kShutdown);
}

TEST(Runtime, AWaitCanTimeOutAndBeRepeated) {
  Ranks ranks(2);
  std::vector<float> mine(4, 1.0f);
  std::vector<float> other(4, 2.0f);
  const auto operation = Allreduce(mine);
  ASSERT_TRUE(ranks.runtime(0).Enqueue(operation, true).ok());
  EXPECT_EQ(ranks.runtime(0).Wait(operation, 0.01).code(), StatusCode::kTimeout);
  const auto answer = Allreduce(other);
  ASSERT_TRUE(ranks.runtime(1).Enqueue(answer, false).ok());
  EXPECT_TRUE(ranks.runtime(0).Wait(operation, kDeadlineSeconds).ok());
  EXPECT_TRUE(ranks.runtime(1).Wait(answer, kDeadlineSeconds).ok());
  EXPECT_EQ(mine, std::vector<float>(4, 3.0f));
}

TEST(ProcessSets, AreAddedUsedAndRemovedWithTheSameIdsEverywhere) {
  Ranks ranks(4);
  ranks.Run([](int rank, Runtime& runtime) {
    for (int round = 0; round < 10; ++round) {
      const auto low = AddSet({0, 1, 2});
      const auto high = AddSet({2, 3});
      ASSERT_TRUE(Call(runtime, low).ok());
      ASSERT_TRUE(Call(runtime, high).ok());
      // Freed ids are reused, oldest first.
      EXPECT_EQ(low->result, 1);
      EXPECT_EQ(high->result, 2);
      EXPECT_EQ(runtime.ProcessSetRanks(2), (std::vector<int>{2, 3}));
      std::vector<float> data(10, static_cast<float>(rank));
      const Status status = Call(runtime, Allreduce(data, "x", 1));
      EXPECT_EQ(status.ok(), rank < 3) << status.message();
      EXPECT_EQ(data.front(), 3.0f);
      if (rank >= 2) {
        std::vector<float> more(10, static_cast<float>(rank));
        ASSERT_TRUE(Call(runtime, Allreduce(more, "x", 2)).ok());
        EXPECT_EQ(more.front(), 5.0f);
      }
      ASSERT_TRUE(Call(runtime, RemoveSet(1)).ok());
      ASSERT_TRUE(Call(runtime, RemoveSet(2)).ok());
      EXPECT_EQ(runtime.ProcessSetIds(), std::vector<int>{0});
    }
  });
}

TEST(ProcessSets, OneThatDoesNotCallDelaysNoOther) {
  Ranks ranks(3);
  ranks.Run([](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, AddSet({0, 1})).ok());
    std::vector<float> stalled(10, 1.0f);
    const auto waiting = Allreduce(stalled, "stalled", 1);
    if (rank == 0) {
      ASSERT_TRUE(runtime.Enqueue(waiting, false).ok());
    }
    for (int step = 0; step < 20; ++step) {
      if (rank == 0) {
        EXPECT_FALSE(waiting->done.load());  // rank 1 has not passed this step
      }
      std::vector<float> data(1000, 1.0f);
      ASSERT_TRUE(Call(runtime, Allreduce(data, "global")).ok());
      ASSERT_EQ(data.front(), 3.0f);
    }
    if (rank == 0) {
      ASSERT_TRUE(runtime.Wait(waiting, kDeadlineSeconds).ok());
    } else if (rank == 1) {
      ASSERT_TRUE(Call(runtime, waiting).ok());
    }
    if (rank < 2) {
      EXPECT_EQ(stalled.front(), 2.0f);
    }
  });
}

TEST(ProcessSets, ASetThatExistsAlreadyIsRefusedOnEveryRank) {
  Ranks ranks(2);
  ranks.Run([](int, Runtime& runtime) {
    EXPECT_EQ(Call(runtime, AddSet({0, 1})).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(Call(runtime, AddSet({0, 7})).code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Call(runtime, AddSet({1})).ok());
  });
}

TEST(ProcessSets, ContradictingRegistrationsRaiseOnAll) {
  Ranks ranks(2);
  ranks.Run([](int rank, Runtime& runtime) {
    const Status status = Call(runtime, AddSet({rank}));
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
    EXPECT_EQ(runtime.ProcessSetIds(), std::vector<int>{0});
  });
}

TEST(ProcessSets, ALostRankLeavesTheOtherSetsUsable) {
  Ranks ranks(3);
  std::barrier<> met(3);
  ranks.Run([&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, AddSet({0, 1})).ok());
    met.arrive_and_wait();
    if (rank == 2) return ranks.fabric().Kill(2);
    EXPECT_EQ(Call(runtime, Barrier()).code(), StatusCode::kRankFailed);
    for (int step = 0; step < 10; ++step) {
      std::vector<float> data(100, 1.0f);
      ASSERT_TRUE(Call(runtime, Allreduce(data, "x", 1)).ok());
      EXPECT_EQ(data.front(), 2.0f);
    }
  });
}

}  // namespace
}  // namespace horoscale
