// Ranks on several hosts, whose reports go through one rank per host: the plan is the same, there
// are fewer messages, and losing any rank has the same effect as on one host.
#include <gmock/gmock.h>

#include <barrier>
#include <string>

#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Allreduce;
using testing::Barrier;
using testing::Call;
using ::testing::HasSubstr;
using testing::Join;
using testing::kDeadlineSeconds;
using testing::Ranks;

const std::vector<uint32_t> kHosts = {0, 0, 0, 1, 1, 1};

float SumOfRanks(int size) { return static_cast<float>(size * (size - 1) / 2); }

// Ranks that are stepped in the order that a test gives.
class Turns {
 public:
  explicit Turns(std::vector<uint32_t> hosts, double patience = 1e9) {
    Config config;
    config.report_patience_seconds = patience;
    const auto size = static_cast<int>(hosts.size());
    auto fabric = InprocFabric::Create(size, {}, std::move(hosts)).TakeValue();
    const std::vector<std::string> names(static_cast<size_t>(size), "host");
    for (int rank = 0; rank < size; ++rank) {
      runtimes_.push_back(std::make_unique<Runtime>(
          config, TopologyOf(rank, names), fabric->Endpoint(rank), Runtime::Driver::kTurns));
    }
  }

  // One allreduce: each rank is stepped once in this order, then as often as necessary.
  void Step(const std::vector<size_t>& order) {
    std::vector<std::vector<float>> data(runtimes_.size(), std::vector<float>(8, 1.0f));
    std::vector<OperationPtr> operations;
    for (size_t rank = 0; rank < runtimes_.size(); ++rank) {
      operations.push_back(Allreduce(data[rank], "gradient"));
      ASSERT_TRUE(runtimes_[rank]->Enqueue(operations[rank], true).ok());
    }
    for (const size_t rank : order) runtimes_[rank]->Turn();
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& runtime : runtimes_) moved |= runtime->Turn();
    }
    for (size_t rank = 0; rank < runtimes_.size(); ++rank) {
      ASSERT_TRUE(operations[rank]->done.load());
      EXPECT_EQ(data[rank].back(), static_cast<float>(runtimes_.size()));
    }
  }

  // Read from a rank's metrics.
  int Counter(size_t rank, const std::string& name) {
    const std::string json = runtimes_[rank]->MetricsJson();
    const size_t at = json.find("\"" + name + "\":");
    return at == std::string::npos ? -1 : std::stoi(json.substr(at + name.size() + 3));
  }

 private:
  std::vector<std::unique_ptr<Runtime>> runtimes_;
};

// All of them take one hop.
TEST(ReportPath, AHostsReportsOfAStepAreOneMessage) {
  Turns ranks(kHosts);
  const std::vector<size_t> leaves_first = {5, 4, 3, 2, 1, 0};
  ranks.Step(leaves_first);  // cached from now on
  const int received = ranks.Counter(0, "control_frames_received");
  const int sent = ranks.Counter(0, "control_frames_sent");
  constexpr int kSteps = 10;
  for (int i = 0; i < kSteps; ++i) ranks.Step(leaves_first);
  EXPECT_EQ(ranks.Counter(0, "control_frames_received") - received, 4 * kSteps)
      << "posts of 1, of 2 and of 3 for its host, whose members' posts it reports";
  EXPECT_EQ(ranks.Counter(0, "control_frames_sent") - sent, 3 * kSteps) << "to these";
  for (size_t rank = 0; rank < kHosts.size(); ++rank) {
    EXPECT_EQ(ranks.Counter(rank, "one_hop"), kSteps);
  }
}

TEST(ReportPath, PlansAreTheSameInWhateverOrderRanksSpeak) {
  for (const double patience : {0.0, 1e9}) {
    Turns ranks({0, 1, 1, 1}, patience);
    for (const auto& order : std::vector<std::vector<size_t>>{{0, 1, 2, 3}, {3, 1, 2, 1}, {1, 3}}) {
      ranks.Step(order);
    }
  }
}

TEST(ReportPath, SetsOfAnyRanksWorkOnAnyHosts) {
  for (const std::vector<uint32_t>& hosts :
       {kHosts, {0, 1, 0, 1, 2, 2}, {0, 1, 2, 3, 4, 5}, {5, 5, 5, 5, 1, 0}}) {
    Ranks ranks(6, {}, hosts);
    ranks.Run([&](int rank, Runtime& runtime) {
      const auto added = AddSet({1, 3, 4, 5});
      ASSERT_TRUE(Call(runtime, added).ok());
      const auto set = static_cast<int>(added->result);
      for (int step = 0; step < 30; ++step) {
        std::vector<float> data(100, static_cast<float>(rank));
        ASSERT_TRUE(Call(runtime, Allreduce(data, "all")).ok());
        ASSERT_EQ(data.back(), SumOfRanks(6));
        if (rank == 0 || rank == 2) continue;
        std::vector<float> part(1000, 1.0f);
        ASSERT_TRUE(Call(runtime, Allreduce(part, "part", set)).ok());
        ASSERT_EQ(part.back(), 4.0f);
      }
    });
  }
}

TEST(ReportPath, RanksThatHaveJoinedDelayNobodyForLong) {
  Ranks ranks(6, {}, kHosts);
  ranks.Run([&](int rank, Runtime& runtime) {
    for (int step = 0; step < (rank == 4 ? 2 : 5); ++step) {
      std::vector<float> data(10, 1.0f);
      ASSERT_TRUE(Call(runtime, Allreduce(data, "gradient")).ok());
    }
    EXPECT_TRUE(Call(runtime, Join()).ok());
  });
}

TEST(ReportPath, AMismatchIsToldToAll) {
  Ranks ranks(6, {}, kHosts);
  ranks.Run([](int rank, Runtime& runtime) {
    std::vector<float> data(rank == 4 ? 5 : 4, 1.0f);
    const Status status = Call(runtime, Allreduce(data, "weights"));
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    EXPECT_THAT(status.message(), HasSubstr("4"));
    std::vector<float> good(4, 1.0f);
    ASSERT_TRUE(Call(runtime, Allreduce(good, "weights")).ok());
  });
}

class LostRank : public ::testing::TestWithParam<int> {};

TEST_P(LostRank, IsNamedByAllOthers) {
  Ranks ranks(6, {}, kHosts);
  std::barrier<> met(6);
  ranks.Run([&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, Barrier()).ok());
    met.arrive_and_wait();
    if (rank == GetParam()) return ranks.fabric().Kill(rank);
    std::vector<float> data(10, 1.0f);
    const Status status = Call(runtime, Allreduce(data, "gradient"));
    EXPECT_EQ(status.code(), StatusCode::kRankFailed);
    EXPECT_EQ(status.detail().ranks, std::vector<int>{GetParam()}) << status.message();
  });
}

INSTANTIATE_TEST_SUITE_P(Coordinator_Leader_Leaf, LostRank, ::testing::Values(0, 3, 5));

TEST(ReportPath, ARankThatLeavesRightAfterItsLastOperationHarmsNobody) {
  for (int repetition = 0; repetition < 20; ++repetition) {
    Ranks ranks(6, {}, kHosts);
    ranks.Run([](int rank, Runtime& runtime) {
      std::vector<float> data(100'000, static_cast<float>(rank));
      const Status status = Call(runtime, Allreduce(data));
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(data.back(), SumOfRanks(6));
      runtime.Shutdown("");
    });
  }
}

}  // namespace
}  // namespace horoscale
