// The collectives over the real exchanges. Each rank is a thread that shares no state with the
// others.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collectives/collective.h"
#include "conformance/transport_fixture.h"
#include "platform/deadline.h"
#include "support/collective_cases.h"

namespace horoscale {
namespace {

using Cases = std::vector<std::unique_ptr<testing::CollectiveCase>>;

// Runs the cases in order. Returns a description of the error, or an empty string.
std::string RunInOrder(const Cases& cases, Exchange& exchange, Transport& transport) {
  Inbox inbox;
  const Deadline deadline = Deadline::After(kPatience);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::unique_ptr<Collective> collective = cases[i]->Make(exchange);
    for (;;) {
      const Result<Progress> progress = collective->Step();
      if (!progress.ok()) return progress.status().message();
      if (*progress == Progress::kDone) break;
      if (*progress == Progress::kAdvanced || transport.Poll(inbox)) continue;
      if (deadline.Passed()) return "operation " + std::to_string(i) + " doesn't end";
      std::this_thread::yield();
    }
  }
  // Other members may still read this member's chunks.
  while (transport.HasUnsent() && !deadline.Passed()) transport.Poll(inbox);
  return {};
}

class CollectivesTest : public TransportTest {
 protected:
  // The hosts of the members, as reported by the exchange.
  std::vector<uint32_t> Hosts() {
    const std::vector<std::unique_ptr<Exchange>> exchanges = OpenAll({1, 1});
    return {exchanges[0]->hosts().begin(), exchanges[0]->hosts().end()};
  }

  void RunCases(const Cases& cases) {
    const std::vector<std::unique_ptr<Exchange>> exchanges = OpenAll();
    std::vector<std::string> problems(exchanges.size());
    std::vector<std::thread> members;
    for (size_t m = 0; m < exchanges.size(); ++m) {
      members.emplace_back(
          [&, m] { problems[m] = RunInOrder(cases, *exchanges[m], At(static_cast<int>(m))); });
    }
    for (std::thread& member : members) member.join();
    for (size_t m = 0; m < exchanges.size(); ++m) {
      EXPECT_EQ(problems[m], "") << "member " << m;
      EXPECT_EQ(exchanges[m]->next_round, exchanges[0]->next_round);
    }
    for (const auto& one : cases) EXPECT_EQ(one->Check(), "") << one->Describe();
  }
};

TEST_P(CollectivesTest, RandomOperationsInARow) {
  for (const int members : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(members);
    std::mt19937_64 random(static_cast<uint64_t>(members));
    Start(members);
    const std::vector<uint32_t> hosts = Hosts();
    Cases cases;
    for (int i = 0; i < 60; ++i) {
      cases.push_back(
          testing::MakeRandomCase(random, static_cast<uint32_t>(members), 30'000, hosts));
    }
    RunCases(cases);
  }
}

TEST_P(CollectivesTest, LargeReductionsThroughChunksOfTheDefaultSize) {
  std::mt19937_64 random(9);
  Start(3, MemoryOptions());
  const std::vector<uint32_t> hosts = Hosts();
  Cases cases;
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16, DataType::kInt8}) {
    cases.push_back(testing::MakeAllreduceCase(
        random, {.members = 3,
                 .reduction = {.dtype = dtype, .op = ReduceOp::kAverage, .divisor = 3},
                 .elements = 400'003,
                 .cuts = 5,
                 .in_place = true,
                 .hosts = hosts}));
    cases.push_back(testing::MakeReduceCase(random, {.members = 3,
                                                     .reduction = {.dtype = dtype},
                                                     .elements = 400'003,
                                                     .cuts = 5,
                                                     .hosts = hosts}));
  }
  RunCases(cases);
}

HOROSCALE_INSTANTIATE_TRANSPORT_TEST(CollectivesTest);

}  // namespace
}  // namespace horoscale
