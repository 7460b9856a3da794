// Reports on ranks that wait for each other across sets, and the response to SIGUSR2.
#include <signal.h>

#include <latch>

#include "platform/state_signal.h"
#include "support/captured_log.h"
#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Allreduce;
using testing::Call;
using testing::Enqueued;
using testing::Ranks;

// The periods are checked twice a second.
Config ImpatientConfig() {
  Config config;
  config.stall_warning_seconds = 0.2;
  return config;
}

TEST(Waits, CrossedBlockingCallsOnTwoSetsAreRecognised) {
  CapturedLog log;
  Ranks ranks(3, ImpatientConfig());
  ranks.Run([&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, AddSet({1, 2})).ok());  // 1
    std::vector<float> x(4);
    std::vector<float> y(4);
    if (rank == 0) {
      // It is in neither set, but rank 0 is notified of the others' cycle.
      EXPECT_TRUE(log.Saw("ranks wait for each other"));
      EXPECT_TRUE(log.Saw(", waiting for rank 2; rank 2 has been blocked in "));
      ranks.runtime(1).Shutdown("");
      ranks.runtime(2).Shutdown("");
      return;
    }
    const auto first = rank == 1 ? Allreduce(x, "x", 1) : Allreduce(y, "y", 0);
    EXPECT_FALSE(Call(runtime, first).ok());
  });
  EXPECT_NE(log.text().find("rank 1 has been blocked in allreduce \"x\" on process set 1"),
            std::string::npos);
  EXPECT_NE(log.text().find("rank 2 has been blocked in allreduce \"y\" on process set 0"),
            std::string::npos);
}

// A rank's description of an unnamed call must match that of its set's coordinator.
TEST(Waits, CrossedCallsWithoutNamesAreRecognised) {
  CapturedLog log;
  Ranks ranks(3, ImpatientConfig());
  ranks.Run([&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, AddSet({1, 2})).ok());  // 1
    std::vector<float> x(4);
    if (rank == 0) {
      EXPECT_TRUE(log.Saw("ranks wait for each other"));
      ranks.runtime(1).Shutdown("");
      ranks.runtime(2).Shutdown("");
      return;
    }
    EXPECT_FALSE(Call(runtime, Allreduce(x, "", rank == 1 ? 1 : 0)).ok());
  });
  EXPECT_NE(
      log.text().find("rank 1 has been blocked in allreduce \"allreduce.unnamed.1\" on process set "
                      "1"),
      std::string::npos)
      << log.text();
}

TEST(Waits, AnAsynchronousCallIsNoCrossing) {
  CapturedLog log;
  std::latch waited(1);
  Ranks ranks(2, ImpatientConfig());
  ranks.Run([&](int rank, Runtime& runtime) {
    std::vector<float> x(4);
    std::vector<float> y(4);
    if (rank == 0) {
      EXPECT_EQ(runtime.Wait(Enqueued(runtime, Allreduce(x, "x")), 2).code(), StatusCode::kTimeout);
      waited.count_down();
    } else {
      const auto pending = Enqueued(runtime, Allreduce(y, "y"));
      EXPECT_TRUE(log.Saw("allreduce \"x\" on process set 0 has waited for"));
      EXPECT_TRUE(log.Saw("allreduce \"y\" on process set 0 has waited for"));
      waited.wait();
    }
    runtime.Shutdown("");
  });
  EXPECT_EQ(log.text().find("wait for each other"), std::string::npos) << log.text();
}

TEST(Waits, TheSignalMakesEveryRankTellItsState) {
  CapturedLog log;
  const auto before = signal(SIGUSR2, SIG_DFL);
  ASSERT_TRUE(TakeStateSignal());
  Ranks ranks(2);
  std::vector<float> x(4);
  std::vector<float> y(4);
  ranks.Run([&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Call(runtime, AddSet({1})).ok());
    const auto pending = Enqueued(runtime, rank == 0 ? Allreduce(x, "x") : Allreduce(y, "y"));
    if (rank == 1) raise(SIGUSR2);
    EXPECT_TRUE(log.Saw("rank 1 of 2: 1 operations are not done"));
    EXPECT_TRUE(log.Saw("allreduce \"x\" on process set 0, called 0 s ago, waiting for rank 1"));
    EXPECT_TRUE(
        log.Saw("allreduce \"y\" on process set 0 was called by rank 1, waiting for rank 0"));
    EXPECT_TRUE(log.Saw("is not planned yet: rank 0 decides"));
    EXPECT_TRUE(log.Saw("process set 1 of rank 1: 0 operations pending"));
  });
  const size_t said = log.text().find("process set 1 of");
  EXPECT_EQ(log.text().find("process set 1 of", said + 1), std::string::npos)
      << "by rank 0 as well";
  signal(SIGUSR2, before);
}

}  // namespace
}  // namespace horoscale
