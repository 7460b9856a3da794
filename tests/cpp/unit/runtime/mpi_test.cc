// Ranks whose process sets use MPI's own collectives, over the MPI double: how they handle peers
// that leave, contradict or fail while MPI runs an operation.
#include <gmock/gmock.h>

#include <ctime>

#include "support/mpi_double.h"
#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Allreduce;
using testing::Call;
using testing::Enqueued;
using ::testing::HasSubstr;
using testing::kDeadlineSeconds;
using testing::MpiDouble;

constexpr int kRanks = 3;

class MpiRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fabric = InprocFabric::Create(kRanks);
    ASSERT_TRUE(fabric.ok());
    fabric_ = *fabric;
    OnRanks([this](int rank) {
      auto parent = MpiCommunicator::Duplicate(mpi_.library(), mpi_.World(rank),
                                               Deadline::After(kDeadlineSeconds));
      ASSERT_TRUE(parent.ok());
      auto made = MpiCommunicators::Create(parent.TakeValue());
      ASSERT_TRUE(made.ok());
      const std::vector<std::string> hosts(kRanks, "host");
      runtimes_[static_cast<size_t>(rank)] =
          std::make_unique<Runtime>(Config{}, TopologyOf(rank, hosts), fabric_->Endpoint(rank),
                                    Runtime::Driver::kThread, made.TakeValue());
    });
  }

  static void OnRanks(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

  Runtime& of(int rank) { return *runtimes_[static_cast<size_t>(rank)]; }
  std::vector<float>& data(int rank) { return data_[static_cast<size_t>(rank)]; }

  // An allreduce on all ranks that is in MPI's hands until Release().
  std::vector<OperationPtr> StartHeld(const std::string& name) {
    mpi_.Hold();
    const int before = mpi_.begun();
    std::vector<OperationPtr> operations;
    for (int rank = 0; rank < kRanks; ++rank) {
      data(rank) = {static_cast<float>(rank)};
      operations.push_back(Enqueued(of(rank), Allreduce(data(rank), name)));
    }
    const Deadline deadline = Deadline::After(kDeadlineSeconds);
    while (mpi_.begun() < before + kRanks) {
      EXPECT_FALSE(deadline.Passed());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return operations;
  }

  Status WaitFor(int rank, const std::vector<OperationPtr>& operations) {
    return of(rank).Wait(operations[static_cast<size_t>(rank)], kDeadlineSeconds);
  }

  MpiDouble mpi_{kRanks};
  std::array<std::vector<float>, kRanks> data_;
  std::shared_ptr<InprocFabric> fabric_;
  std::array<std::unique_ptr<Runtime>, kRanks> runtimes_;
};

TEST_F(MpiRuntime, SetsHaveCommunicatorsUntilTheyAreRemoved) {
  OnRanks([this](int rank) {
    const auto add = AddSet({0, 2});
    ASSERT_TRUE(Call(of(rank), add).ok());
    if (rank != 1) {
      data(rank) = {1};
      const auto on_set = Allreduce(data(rank), "x", static_cast<int>(add->result));
      ASSERT_TRUE(Call(of(rank), on_set).ok());
      EXPECT_EQ(data(rank), std::vector<float>{2});
    }
    const std::string metrics = of(rank).MetricsJson();
    EXPECT_EQ(metrics.find("\"mpi_buckets\": 1") != std::string::npos, rank != 1) << metrics;
    ASSERT_TRUE(Call(of(rank), testing::RemoveSet(static_cast<int>(add->result))).ok());
    of(rank).Shutdown("");
  });
  EXPECT_EQ(mpi_.living(), 0);
}

TEST_F(MpiRuntime, ARankThatLeavesIsNamedAndOtherSetsGoOn) {
  OnRanks([this](int rank) { ASSERT_TRUE(Call(of(rank), AddSet({0, 1})).ok()); });
  const auto operations = StartHeld("gradient");
  of(2).Shutdown("out of memory");
  EXPECT_EQ(WaitFor(2, operations).code(), StatusCode::kShutdown);
  mpi_.Release();
  OnRanks([&](int rank) {
    if (rank == 2) return;
    const Status status = WaitFor(rank, operations);
    EXPECT_EQ(status.code(), StatusCode::kRankFailed);
    EXPECT_EQ(status.detail().ranks, std::vector<int>{2});
    EXPECT_EQ(status.detail().tensor, "gradient");
    EXPECT_EQ(status.detail().process_set_id, 0);
    EXPECT_THAT(status.message(), HasSubstr("out of memory"));
    std::vector<float> values = {1};
    EXPECT_TRUE(Call(of(rank), Allreduce(values, "rest", 1)).ok());
    EXPECT_EQ(values, std::vector<float>{2});
  });
}

TEST_F(MpiRuntime, AnErrorOfMpiOnOneRankIsAnErrorOnAll) {
  const auto operations = StartHeld("gradient");
  mpi_.FailNext("Test");
  OnRanks([&](int rank) {
    const Status status = WaitFor(rank, operations);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.detail().tensor, "gradient");
    EXPECT_EQ(status.detail().process_set_id, 0);
    EXPECT_THAT(status.message(), HasSubstr("MPI_Test: an injected error"));
  });
}

TEST_F(MpiRuntime, AMismatchWhileMpiIsAtWorkConcernsItsTensorOnly) {
  const auto first = StartHeld("first");
  std::array<std::vector<float>, kRanks> wrong;
  std::vector<OperationPtr> second;
  for (int rank = 0; rank < kRanks; ++rank) {
    auto& values = wrong[static_cast<size_t>(rank)];
    values.resize(rank == 1 ? 7 : 5);
    second.push_back(Enqueued(of(rank), Allreduce(values, "second")));
  }
  mpi_.Release();
  OnRanks([&](int rank) {
    EXPECT_TRUE(WaitFor(rank, first).ok());
    EXPECT_EQ(data(rank), std::vector<float>{3});
    const Status status = WaitFor(rank, second);
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_THAT(status.message(), HasSubstr("ranks 0 and 2: float32[5]"));
    EXPECT_THAT(status.message(), HasSubstr("rank 1: float32[7]"));
  });
}

TEST_F(MpiRuntime, RanksSleepWhileMpiTakesItsTime) {
  constexpr double kSeconds = 0.3;
  const auto operations = StartHeld("slow");
  const std::clock_t before = std::clock();  // of the process's CPU time
  std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(used, kSeconds) << "of three ranks together";
  mpi_.Release();
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(WaitFor(rank, operations).ok());
}

}  // namespace
}  // namespace horoscale
