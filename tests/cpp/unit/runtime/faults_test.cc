// How a rank handles peers that end, stall or send garbage.
#include <atomic>

#include "core/codec.h"
#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Allreduce;
using testing::Barrier;
using testing::Call;
using testing::kDeadlineSeconds;
using testing::Ranks;

TEST(Faults, ASetThatIsRegisteredAfterAMemberLeftIsLost) {
  Ranks ranks(3);
  std::atomic<bool> left{false};
  ranks.Run([&](int rank, Runtime& runtime) {
    const auto add = AddSet({1, 2});
    if (rank == 1) {
      // Requests the set, then blocks until rank 2 has it and has left.
      ASSERT_TRUE(runtime.Enqueue(add, true).ok());
      const auto barrier = Barrier();
      std::atomic<bool> over{false};
      barrier->callback = [&](const Status& status) {
        EXPECT_TRUE(status.ok());
        left.wait(false);
        over.store(true);
        over.notify_all();
      };
      ASSERT_TRUE(runtime.Enqueue(barrier, false).ok());
      over.wait(false);
    } else {
      ASSERT_TRUE(Call(runtime, Barrier()).ok());
      const Status added = Call(runtime, add);
      ASSERT_TRUE(added.ok()) << added.message();
    }
    if (rank == 2) {
      runtime.Shutdown("");
      left.store(true);
      left.notify_all();
    }
    if (rank == 1) {
      EXPECT_TRUE(runtime.Wait(add, kDeadlineSeconds).ok());
      std::vector<float> data(4);
      const Status status = Call(runtime, Allreduce(data, "x", 1));
      EXPECT_EQ(status.code(), StatusCode::kRankFailed);
      EXPECT_EQ(status.detail().ranks, std::vector<int>{2}) << status.message();
    }
  });
}

TEST(Faults, AStallLimitEndsTheOperationOnAllMembersAndNamesTheMissing) {
  Config config;
  config.stall_warning_seconds = 60;
  config.stall_shutdown_seconds = 0.01;
  Ranks ranks(4, config);
  ranks.Run([](int rank, Runtime& runtime) {
    if (rank % 2 == 1) return;  // never calls it
    std::vector<float> data(4);
    const Status status = Call(runtime, Allreduce(data, "gradient"));
    EXPECT_EQ(status.code(), StatusCode::kRankFailed);
    EXPECT_EQ(status.detail().ranks, (std::vector<int>{1, 3}));
    EXPECT_EQ(status.detail().tensor, "gradient");
    EXPECT_NE(status.message().find("allreduce \"gradient\""), std::string::npos);
    EXPECT_NE(status.message().find("ranks 1 and 3; ready: ranks 0 and 2"), std::string::npos)
        << status.message();
  });
  std::vector<float> data(4);
  EXPECT_EQ(Call(ranks.runtime(1), Allreduce(data)).code(), StatusCode::kRankFailed);
}

// Rank 0 is a bare transport: it plans a registration, sends the plan to one of the others, and
// dies.
class HalfRegistration : public ::testing::Test, private TransportSink {
 protected:
  HalfRegistration() {
    fabric_ = InprocFabric::Create(3).TakeValue();
    coordinator_ = fabric_->Endpoint(0);
    const std::vector<std::string> hosts(3, "host");
    for (const int rank : {1, 2}) {
      runtimes_[rank - 1] =
          std::make_unique<Runtime>(Config(), TopologyOf(rank, hosts), fabric_->Endpoint(rank));
    }
  }

  Runtime& rank(int number) { return *runtimes_[number - 1]; }

  // Once both have requested the operation, adds it to the plan of the global set, which goes to
  // `hearers` only.
  void Plan(const OperationPtr& operation, std::initializer_list<int> hearers) {
    while (reports_ < 2) {
      coordinator_->Arm();
      if (!coordinator_->Poll(*this)) coordinator_->Sleep(kDeadlineSeconds);
      coordinator_->Disarm();
    }
    reports_ = 0;
    PlanEntry entry;
    entry.sequence = ++sequence_;
    entry.items.emplace_back().request = operation->request;
    for (const int hearer : hearers) {
      coordinator_->Send(hearer, {FrameKind::kPlan, {0, 0}}, Encode(entry));
    }
  }

  void ExpectUnusable(Runtime& runtime, int set) {
    std::vector<float> data(4);
    const Status used = Call(runtime, Allreduce(data, "x", set));
    EXPECT_EQ(used.code(), StatusCode::kRankFailed) << used.message();
    EXPECT_EQ(used.detail().ranks, std::vector<int>{0}) << used.message();
  }

  void OnFrame(int, const FrameHeader& header, std::span<const std::byte>) override {
    reports_ += header.kind == FrameKind::kReport ? 1 : 0;
  }
  void OnRankLost(int, const Status&) override {}

  std::shared_ptr<InprocFabric> fabric_;
  std::unique_ptr<Transport> coordinator_;
  int reports_ = 0;
  std::unique_ptr<Runtime> runtimes_[2];
  uint64_t sequence_ = 0;
};

TEST_F(HalfRegistration, ASetThatOneMemberDoesNotHaveIsLostOnTheOther) {
  const auto on_1 = testing::Enqueued(rank(1), AddSet({1, 2}));
  const auto on_2 = testing::Enqueued(rank(2), AddSet({1, 2}));
  Plan(on_1, {1});
  ASSERT_TRUE(rank(1).Wait(on_1, kDeadlineSeconds).ok());
  fabric_->Kill(0);
  EXPECT_EQ(rank(2).Wait(on_2, kDeadlineSeconds).code(), StatusCode::kRankFailed);
  ExpectUnusable(rank(1), 1);
}

TEST_F(HalfRegistration, ASetThatOneMemberHasRemovedIsLostOnTheOther) {
  const auto add_1 = testing::Enqueued(rank(1), AddSet({1, 2}));
  const auto add_2 = testing::Enqueued(rank(2), AddSet({1, 2}));
  Plan(add_1, {1, 2});
  ASSERT_TRUE(rank(1).Wait(add_1, kDeadlineSeconds).ok());
  ASSERT_TRUE(rank(2).Wait(add_2, kDeadlineSeconds).ok());
  const auto on_1 = testing::Enqueued(rank(1), testing::RemoveSet(1));
  const auto on_2 = testing::Enqueued(rank(2), testing::RemoveSet(1));
  Plan(on_1, {1});
  ASSERT_TRUE(rank(1).Wait(on_1, kDeadlineSeconds).ok());
  fabric_->Kill(0);
  EXPECT_EQ(rank(2).Wait(on_2, kDeadlineSeconds).code(), StatusCode::kRankFailed);
  ExpectUnusable(rank(2), 1);
}

// A rank whose only peer is a bare transport, so that a test can send it anything.
class OneRank {
 public:
  explicit OneRank(int rank) : peer_(1 - rank) {
    const auto fabric = InprocFabric::Create(2);
    EXPECT_TRUE(fabric.ok());
    stranger_ = (*fabric)->Endpoint(peer_);
    const std::vector<std::string> hosts(2, "host");
    runtime_ =
        std::make_unique<Runtime>(Config(), TopologyOf(rank, hosts), (*fabric)->Endpoint(rank));
  }

  // The result of an allreduce whose peer sends this frame instead of participating.
  Status CallWhilePeerSends(FrameKind kind, std::span<const std::byte> payload) {
    const auto operation = Allreduce(data_, "x");
    if (Status status = runtime_->Enqueue(operation, false); !status.ok()) return status;
    stranger_->Send(1 - peer_, {kind, {0, 0}}, payload);
    return runtime_->Wait(operation, kDeadlineSeconds);
  }

  Runtime& runtime() { return *runtime_; }

 private:
  const int peer_;
  std::vector<float> data_{1, 2, 3};
  std::unique_ptr<Transport> stranger_;
  std::unique_ptr<Runtime> runtime_;
};

std::vector<std::byte> Bytes(size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

struct Nonsense {
  const char* name;
  int rank;  // the receiver
  FrameKind kind;
  std::vector<std::byte> payload;
};

std::vector<std::byte> PlanOfNothing() {
  PlanEntry entry;
  entry.sequence = 1;
  entry.items.emplace_back().slot = 7;
  return Encode(entry);
}

std::vector<std::byte> TruncatedPlan() {
  std::vector<std::byte> bytes = PlanOfNothing();
  bytes.pop_back();
  return bytes;
}

class NonsenseTest : public ::testing::TestWithParam<Nonsense> {};

TEST_P(NonsenseTest, LosesTheSetWithAnErrorThatNamesThePeer) {
  const Nonsense& nonsense = GetParam();
  OneRank one(nonsense.rank);
  const Status status = one.CallWhilePeerSends(nonsense.kind, nonsense.payload);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.code(), StatusCode::kTimeout);
  EXPECT_EQ(status.detail().ranks, std::vector<int>{1 - nonsense.rank}) << status.message();
  EXPECT_NE(status.message().find("rank " + std::to_string(1 - nonsense.rank)), std::string::npos)
      << status.message();
  std::vector<float> data(4);
  EXPECT_EQ(Call(one.runtime(), Allreduce(data)).code(), status.code());
}

INSTANTIATE_TEST_SUITE_P(
    Frames, NonsenseTest,
    ::testing::Values(Nonsense{"EmptyReport", 0, FrameKind::kReport, {}},
                      Nonsense{"GarbageReport", 0, FrameKind::kReport, Bytes(100, 0xff)},
                      Nonsense{"PlanToTheCoordinator", 0, FrameKind::kPlan, PlanOfNothing()},
                      Nonsense{"EmptyPlan", 1, FrameKind::kPlan, {}},
                      Nonsense{"TruncatedPlan", 1, FrameKind::kPlan, TruncatedPlan()},
                      Nonsense{"GarbagePlan", 1, FrameKind::kPlan, Bytes(1000, 0x5a)},
                      Nonsense{"PlanOfAnUnknownSlot", 1, FrameKind::kPlan, PlanOfNothing()},
                      Nonsense{"ReportToAMember", 1, FrameKind::kReport, Bytes(3, 0)},
                      Nonsense{"GarbagePoison", 0, FrameKind::kPoison, Bytes(10, 0xff)},
                      Nonsense{"GarbageGoodbye", 1, FrameKind::kGoodbye, Bytes(10, 0xff)},
                      Nonsense{"UnknownKind", 0, static_cast<FrameKind>(77), Bytes(10, 1)}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace horoscale
