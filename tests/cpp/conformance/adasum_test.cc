// Adasum over the real exchanges. Each rank is a thread that shares no state with the others.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "conformance/transport_fixture.h"
#include "platform/deadline.h"
#include "support/adasum_case.h"

namespace horoscale {
namespace {

class AdasumTest : public TransportTest {
 protected:
  // A description of the error, or an empty string.
  std::string Run(testing::AdasumCase& operation, Exchange& exchange, Transport& transport) {
    Inbox inbox;
    const Deadline deadline = Deadline::After(kPatience);
    const std::unique_ptr<Collective> collective = operation.Make(exchange);
    for (;;) {
      const Result<Progress> progress = collective->Step();
      if (!progress.ok()) return progress.status().message();
      if (*progress == Progress::kDone) break;
      if (*progress == Progress::kAdvanced || transport.Poll(inbox)) continue;
      if (deadline.Passed()) return "it doesn't end";
      std::this_thread::yield();
    }
    while (transport.HasUnsent() && !deadline.Passed()) transport.Poll(inbox);
    return {};
  }

  void RunOnAll(testing::AdasumCase& operation, std::vector<std::unique_ptr<Exchange>>& exchanges) {
    std::vector<std::string> problems(exchanges.size());
    std::vector<std::thread> members;
    for (size_t m = 0; m < exchanges.size(); ++m) {
      members.emplace_back(
          [&, m] { problems[m] = Run(operation, *exchanges[m], At(static_cast<int>(m))); });
    }
    for (std::thread& member : members) member.join();
    for (size_t m = 0; m < exchanges.size(); ++m) {
      EXPECT_EQ(problems[m], "") << "member " << m;
      EXPECT_EQ(exchanges[m]->next_round, exchanges[0]->next_round);
    }
    EXPECT_EQ(operation.Check(), "") << operation.Describe();
  }
};

TEST_P(AdasumTest, TypesAndGroupsOnAnyNumberOfMembers) {
  for (const int members : {2, 3, 4, 6, 8}) {
    SCOPED_TRACE(members);
    std::mt19937_64 random(static_cast<uint64_t>(members));
    Start(members);
    auto exchanges = OpenAll();
    for (const DataType dtype : {DataType::kFloat16, DataType::kFloat32, DataType::kFloat64}) {
      for (const uint32_t group : {1u, members % 2 == 0 ? 2u : 3u}) {
        testing::AdasumCase operation(random, {.members = static_cast<uint32_t>(members),
                                               .group = group,
                                               .dtype = dtype,
                                               .sizes = {1, 4000, 77, 0},
                                               .in_place = group > 1});
        RunOnAll(operation, exchanges);
      }
    }
  }
}

TEST_P(AdasumTest, ChunksOfTheDefaultSize) {
  std::mt19937_64 random(9);
  Start(3, MemoryOptions());
  auto exchanges = OpenAll();
  testing::AdasumCase operation(random, {.members = 3, .sizes = {400'003}});
  RunOnAll(operation, exchanges);
}

HOROSCALE_INSTANTIATE_TRANSPORT_TEST(AdasumTest);

}  // namespace
}  // namespace horoscale
