// MPI's own collectives and their communicators, over the MPI double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "backends/mpi/mpi_collectives.h"
#include "support/mpi_double.h"

namespace horoscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MpiDouble;

constexpr double kPatience = 30;

// The backend's state in each rank of a job.
class MpiBackend : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    OnRanks([this](int rank) {
      auto parent =
          MpiCommunicator::Duplicate(mpi_.library(), mpi_.World(rank), Deadline::After(kPatience));
      ASSERT_TRUE(parent.ok());
      auto made = MpiCommunicators::Create(parent.TakeValue());
      ASSERT_TRUE(made.ok());
      ranks_[static_cast<size_t>(rank)] = made.TakeValue();
    });
  }

  static void OnRanks(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

  MpiCommunicators& of(int rank) { return *ranks_[static_cast<size_t>(rank)]; }

  void CloseAll() {
    OnRanks([this](int rank) { ranks_[static_cast<size_t>(rank)].reset(); });
  }

  static void Until(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(kPatience);
    while (!condition()) {
      ASSERT_FALSE(deadline.Passed());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  MpiDouble mpi_{kRanks};
  std::array<std::unique_ptr<MpiCommunicators>, kRanks> ranks_;
};

// One rank's part of an in-place operation on float32 tensors.
struct Part {
  FusedOperation operation;
  std::unique_ptr<Collective> collective;

  Part(OpKind kind, std::vector<std::vector<float>*> tensors,
       std::shared_ptr<MpiSetCommunicator> communicator) {
    operation.kind = kind;
    operation.reduction.dtype = DataType::kFloat32;
    for (std::vector<float>* tensor : tensors) {
      auto* const bytes = reinterpret_cast<std::byte*>(tensor->data());
      const auto rows = static_cast<int64_t>(tensor->size());
      operation.pieces.push_back({bytes, bytes, 4 * rows, rows, 4});
    }
    collective = StartMpi(std::move(communicator), operation);
  }
};

// Steps all parts until they are done or one fails; returns its status.
Status Finish(std::span<const std::unique_ptr<Part>> parts) {
  std::vector<bool> done(parts.size());
  const Deadline deadline = Deadline::After(kPatience);
  while (std::find(done.begin(), done.end(), false) != done.end()) {
    if (deadline.Passed()) return Status::Timeout("not done");
    for (size_t i = 0; i < parts.size(); ++i) {
      if (done[i]) continue;
      const auto progress = parts[i]->collective->Step();
      if (!progress.ok()) return progress.status();
      done[i] = *progress == Progress::kDone;
    }
  }
  return {};
}

class MpiBackendOfOneSet : public MpiBackend {
 protected:
  void Register() {
    for (int rank = 0; rank < kRanks; ++rank) set_.push_back(of(rank).Make(kAll));
    Until([this] {
      return std::all_of(set_.begin(), set_.end(),
                         [](const auto& one) { return one->Get().ok() && *one->Get() != nullptr; });
    });
  }

  std::unique_ptr<Part> Start(OpKind kind, int rank, std::vector<std::vector<float>*> tensors) {
    return std::make_unique<Part>(kind, std::move(tensors), set_[static_cast<size_t>(rank)]);
  }

  // An allreduce of one value per rank.
  std::vector<std::unique_ptr<Part>> StartAllreduce() {
    std::vector<std::unique_ptr<Part>> parts;
    for (int rank = 0; rank < kRanks; ++rank) {
      values_[static_cast<size_t>(rank)] = {static_cast<float>(rank + 1)};
      parts.push_back(Start(OpKind::kAllreduce, rank, {&values_[static_cast<size_t>(rank)]}));
    }
    return parts;
  }

  const std::vector<int> kAll = {0, 1, 2};
  std::vector<std::shared_ptr<MpiSetCommunicator>> set_;
  std::array<std::vector<float>, kRanks> values_;
};

TEST_F(MpiBackendOfOneSet, ACollectiveIsDoneWhenMpiSaysSo) {
  Register();
  mpi_.Hold();
  const auto parts = StartAllreduce();
  for (const auto& part : parts) EXPECT_EQ(*part->collective->Step(), Progress::kAdvanced);
  for (int turn = 0; turn < 5; ++turn) {
    for (const auto& part : parts) EXPECT_EQ(*part->collective->Step(), Progress::kIdle);
  }
  EXPECT_THAT(values_[0], ElementsAre(1));
  mpi_.Release();
  ASSERT_TRUE(Finish(parts).ok());
  for (const auto& values : values_) EXPECT_THAT(values, ElementsAre(6));
}

TEST_F(MpiBackendOfOneSet, TensorsOfABucketAreReducedAndScaledTogether) {
  Register();
  std::array<std::vector<float>, kRanks> more;
  std::vector<std::unique_ptr<Part>> parts;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<size_t>(rank);
    values_[at] = {1, 2};
    more[at] = {static_cast<float>(rank), 10, 20};
    parts.push_back(Start(OpKind::kAllreduce, rank, {&values_[at], &more[at]}));
    parts.back()->operation.reduction.op = ReduceOp::kAverage;
    parts.back()->operation.reduction.divisor = kRanks;
    parts.back()->operation.reduction.postscale = 2;
  }
  ASSERT_TRUE(Finish(parts).ok());
  for (const auto& values : values_) EXPECT_THAT(values, ElementsAre(2, 4));
  for (const auto& values : more) EXPECT_THAT(values, ElementsAre(2, 20, 40));
}

TEST_F(MpiBackendOfOneSet, MembersMayHaveOtherNumbersInTheUsersCommunicator) {
  OnRanks([this](int rank) {
    auto turned = MpiCommunicator::OfRanks(
        *MpiCommunicator::Duplicate(mpi_.library(), mpi_.World(rank), Deadline::After(kPatience))
             .TakeValue(),
        std::array{2, 0, 1});
    ASSERT_TRUE(turned.ok());
    auto set = of(rank).Duplicate((*turned)->handle(), kAll, Deadline::After(kPatience));
    ASSERT_TRUE(set.ok()) << set.status().message();
    std::vector<float> values = {0, 0, 0};
    values[0] = static_cast<float>(rank);
    Part broadcast(OpKind::kBroadcast, {&values}, *set);
    broadcast.operation.root = 2;
    while (*broadcast.collective->Step() != Progress::kDone) std::this_thread::yield();
    EXPECT_THAT(values, ElementsAre(2, 0, 0));

    values = {1, 2, 3, 4};  // the first member has a row more
    Part scatter(OpKind::kReducescatter, {&values}, *set);
    while (*scatter.collective->Step() != Progress::kDone) std::this_thread::yield();
    EXPECT_FLOAT_EQ(values[0], rank == 0 ? 3 : 3 * static_cast<float>(rank + 2));
    if (rank == 0) {
      EXPECT_FLOAT_EQ(values[1], 6);
    }
  });
}

TEST_F(MpiBackendOfOneSet, AnErrorAtTheBeginningIsMpisOwn) {
  Register();
  const auto parts = StartAllreduce();
  mpi_.FailNext("Iallreduce");
  const Status status = Finish(parts);
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  EXPECT_EQ(status.message(), "MPI_Iallreduce: an injected error");
}

TEST_F(MpiBackendOfOneSet, AnErrorWhileItRunsIsMpisOwnToo) {
  Register();
  const auto parts = StartAllreduce();
  for (const auto& part : parts) ASSERT_TRUE(part->collective->Step().ok());
  mpi_.FailNext("Test");
  EXPECT_EQ(Finish(parts).message(), "MPI_Test: an injected error");
}

TEST_F(MpiBackendOfOneSet, SizesThatContradictEachOtherAreAnErrorOfMpi) {
  Register();
  auto parts = StartAllreduce();
  std::vector<float> longer(2);
  parts[1] = Start(OpKind::kAllreduce, 1, {&longer});
  EXPECT_EQ(Finish(parts).message(), "MPI_Test: message truncated");
}

TEST_F(MpiBackendOfOneSet, WhatWasGivenUpWritesIntoNoTensor) {
  Register();
  const int others = mpi_.living() - kRanks;
  mpi_.Hold();
  auto parts = StartAllreduce();
  for (const auto& part : parts) ASSERT_TRUE(part->collective->Step().ok());
  parts.erase(parts.begin());  // rank 0 fails
  values_[0] = std::vector<float>();
  mpi_.Release();
  ASSERT_TRUE(Finish(parts).ok());
  EXPECT_THAT(values_[1], ElementsAre(6));
  for (int rank = 0; rank < kRanks; ++rank) {
    of(rank).Free(set_[static_cast<size_t>(rank)]);
  }
  // MPI may still use rank 0's communicator, so it can't be freed.
  Until([&] { return mpi_.living() == others + 1; });
}

TEST_F(MpiBackendOfOneSet, OperationsWaitForTheirCommunicator) {
  set_.resize(kRanks);
  set_[0] = of(0).Make(kAll);
  std::vector<float> values = {1};
  const auto first = Start(OpKind::kAllreduce, 0, {&values});
  for (int turn = 0; turn < 5; ++turn) EXPECT_EQ(*first->collective->Step(), Progress::kIdle);
  set_[1] = of(1).Make(kAll);
  set_[2] = of(2).Make(kAll);
  std::vector<float> second = {2};
  std::vector<float> third = {3};
  std::vector<std::unique_ptr<Part>> rest;
  rest.push_back(Start(OpKind::kAllreduce, 1, {&second}));
  rest.push_back(Start(OpKind::kAllreduce, 2, {&third}));
  Until([&] { return *first->collective->Step() == Progress::kAdvanced; });
  ASSERT_TRUE(Finish(rest).ok());
  EXPECT_THAT(second, ElementsAre(6));
}

TEST_F(MpiBackendOfOneSet, ACommunicatorThatCantBeMadeFailsItsOperations) {
  mpi_.FailNext("Comm_create_group");
  set_.push_back(of(0).Make(kAll));
  std::vector<float> values = {1};
  const auto part = Start(OpKind::kAllreduce, 0, {&values});
  Status status;
  Until([&] {
    const auto progress = part->collective->Step();
    status = progress.status();
    return !progress.ok();
  });
  EXPECT_EQ(status.message(), "MPI_Comm_create_group: an injected error");
}

TEST_F(MpiBackend, CommunicatorsOfOverlappingSetsAreMadeInOneOrderAndFreed) {
  const std::vector<std::vector<int>> sets = {{0, 1}, {1, 2}, {0, 2}, {0, 1, 2}, {1}};
  const int before = mpi_.living();
  for (int turn = 0; turn < 50; ++turn) {
    std::array<std::vector<std::shared_ptr<MpiSetCommunicator>>, kRanks> made;
    OnRanks([&](int rank) {
      for (const auto& ranks : sets)
        made[static_cast<size_t>(rank)].push_back(of(rank).Make(ranks));
      for (auto& one : made[static_cast<size_t>(rank)]) of(rank).Free(std::move(one));
    });
    EXPECT_EQ(made[1][4], nullptr);  // alone
    EXPECT_EQ(made[0][1], nullptr);  // outside
  }
  Until([&] { return mpi_.living() == before; });
  CloseAll();
  EXPECT_EQ(mpi_.living(), 0);
}

TEST_F(MpiBackend, WhatWasNotRemovedIsFreedAtTheEnd) {
  OnRanks([this](int rank) {
    (void)of(rank).Make(std::array{0, 1, 2});
    const auto duplicate =
        of(rank).Duplicate(mpi_.World(rank), std::array{0, 1, 2}, Deadline::After(kPatience));
    EXPECT_TRUE(duplicate.ok());
  });
  CloseAll();
  EXPECT_EQ(mpi_.living(), 0);
}

TEST_F(MpiBackend, ACommunicatorOfOtherRanksIsRefused) {
  const int before = mpi_.living();
  OnRanks([this](int rank) {
    const auto made =
        of(rank).Duplicate(mpi_.World(rank), std::array{0, 1}, Deadline::After(kPatience));
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(made.status().message(),
                HasSubstr("ranks 0 and 1 contains other ranks: ranks 0-2"));
  });
  EXPECT_EQ(mpi_.living(), before);
}

TEST_F(MpiBackend, TheEndDoesNotWaitForRanksThatHaveGone) {
  (void)of(0).Make(std::array{0, 1});
  const auto began = std::chrono::steady_clock::now();
  ranks_[0].reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

}  // namespace
}  // namespace horoscale
