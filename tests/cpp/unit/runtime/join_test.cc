// join() on the global set, and its effect on the joined rank's other sets.
#include <barrier>

#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Allreduce;
using testing::Barrier;
using testing::Call;
using testing::Join;
using testing::kDeadlineSeconds;
using testing::Ranks;

TEST(Join, TheOthersGoOnWithoutTheRankAndAllLearnWhoWasLast) {
  Ranks ranks(3);
  ranks.Run([](int rank, Runtime& runtime) {
    for (int step = 0; step < rank; ++step) {  // rank 2 has the most steps
      std::vector<float> data(10, 1.0f);
      ASSERT_TRUE(Call(runtime, Allreduce(data)).ok());
      // Joined ranks count: an Average divides by all three.
      EXPECT_EQ(data.front(), static_cast<float>(step == 0 ? 2 : 1));
      data.assign(10, 1.0f);
      const auto average = Allreduce(data);
      average->request.signature.reduce_op = ReduceOp::kAverage;
      ASSERT_TRUE(Call(runtime, average).ok());
      EXPECT_EQ(data.front(), static_cast<float>(step == 0 ? 2 : 1) / 3.0f);
    }
    const auto join = Join();
    ASSERT_TRUE(Call(runtime, join).ok());
    EXPECT_EQ(join->result, 2);
    std::vector<float> data(10, 1.0f);
    ASSERT_TRUE(Call(runtime, Allreduce(data)).ok());
    EXPECT_EQ(data.front(), 3.0f);
  });
}

TEST(Join, AnOperationOfASubsetThatContainsTheRankRaises) {
  Ranks ranks(3);
  ranks.Run([](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, AddSet({1, 2})).ok());
    ASSERT_TRUE(Call(runtime, AddSet({0, 1})).ok());
    for (int round = 0; round < 10; ++round) {
      if (rank == 1) {
        std::vector<float> data(10, 1.0f);
        const Status status = Call(runtime, Allreduce(data, "x", 1));
        EXPECT_EQ(status.code(), StatusCode::kJoined) << status.message();
        EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
        EXPECT_EQ(Call(runtime, Barrier("", 1)).code(), StatusCode::kJoined);
      }
      if (rank < 2) {  // does not contain rank 2
        std::vector<float> data(10, 1.0f);
        ASSERT_TRUE(Call(runtime, Allreduce(data, "x", 2)).ok());
        EXPECT_EQ(data.front(), 2.0f);
      }
      const auto join = Join();
      ASSERT_TRUE(Call(runtime, join).ok());
      EXPECT_LT(join->result, 2);
      // At once, even if the other members do not know yet that all have joined.
      if (rank > 0) {
        std::vector<float> data(10, 1.0f);
        const Status status = Call(runtime, Allreduce(data, "x", 1));
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(data.front(), 2.0f);
      }
      ASSERT_TRUE(Call(runtime, Barrier()).ok());
    }
  });
}

TEST(Join, OneThatFailsGivesUpTheOtherSetsOfItsRank) {
  Ranks ranks(3);
  std::barrier<> met(3);
  ranks.Run([&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, AddSet({0, 1})).ok());
    const auto join = Join();
    if (rank == 0) {
      ASSERT_TRUE(runtime.Enqueue(join, false).ok());
    }
    met.arrive_and_wait();
    if (rank == 0) {
      const Status status = runtime.Wait(join, kDeadlineSeconds);
      EXPECT_EQ(status.code(), StatusCode::kRankFailed);
      EXPECT_EQ(status.detail().ranks, std::vector<int>{2}) << status.message();
    } else if (rank == 1) {
      EXPECT_FALSE(Call(runtime, Barrier("", 1)).ok());  // needs rank 0
    } else {
      ranks.fabric().Kill(2);
    }
  });
}

TEST(Join, ASecondOneWhileTheFirstIsPendingIsRefused) {
  Ranks ranks(2);
  const auto first = Join();
  const auto second = Join();
  ASSERT_TRUE(ranks.runtime(0).Enqueue(first, false).ok());
  EXPECT_EQ(Call(ranks.runtime(0), second).code(), StatusCode::kDuplicateName);
  ASSERT_TRUE(Call(ranks.runtime(1), Join()).ok());
  EXPECT_TRUE(ranks.runtime(0).Wait(first, kDeadlineSeconds).ok());
}

TEST(Join, ASetThatIsRegisteredAfterTheJoinKnowsOfIt) {
  Ranks ranks(3);
  ranks.Run([](int rank, Runtime& runtime) {
    const auto add = AddSet({1, 2});
    if (rank == 2) {
      const auto pending = testing::Enqueued(runtime, add);
      ASSERT_TRUE(Call(runtime, Join()).ok());
      EXPECT_TRUE(pending->done.load());
      return;
    }
    ASSERT_TRUE(Call(runtime, add).ok());
    if (rank == 1) {
      std::vector<float> data(10, 1.0f);
      const Status status = Call(runtime, Allreduce(data, "x", 1));
      EXPECT_EQ(status.code(), StatusCode::kJoined) << status.message();
      EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
    }
    ASSERT_TRUE(Call(runtime, Join()).ok());
  });
}

}  // namespace
}  // namespace horoscale
