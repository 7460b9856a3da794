// What every transport guarantees about sleeping and waking.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "conformance/transport_fixture.h"

namespace horoscale {
namespace {

class TransportSleepTest : public TransportTest {};

TEST_P(TransportSleepTest, ASleeperIsWokenByAFrame) {
  Start(2);
  At(0).Arm();
  Poll(0);
  At(1).Send(0, {FrameKind::kReport, {}}, {});
  At(1).Send(0, {FrameKind::kReport, {}}, {});
  const double before = MonotonicSeconds();
  At(0).Sleep(kPatience);
  EXPECT_LT(MonotonicSeconds() - before, kPatience / 2);
  At(0).Disarm();
  Poll(0);
  EXPECT_EQ(InboxOf(0).frames[1].size(), 2u);
  const uint64_t rings = GetParam().has_common_memory ? 1 : 0;
  EXPECT_EQ(At(1).counters().doorbells_rung, rings) << "once a sleep";
  At(1).Send(0, {FrameKind::kReport, {}}, {});
  EXPECT_EQ(At(1).counters().doorbells_rung, rings) << "nobody sleeps";
}

TEST_P(TransportSleepTest, ASleeperIsWokenByAChunkAndByARelease) {
  Start(2);
  auto exchanges = OpenAll();
  Poll(1);  // wait for the peer to open the set: until then the chunk would be held back
  At(0).Arm();
  PublishBytes(*exchanges[1], 0, Pattern(8, 1));
  At(0).Sleep(kPatience);
  At(0).Disarm();
  EXPECT_TRUE(PollUntil([&] { return exchanges[0]->Peek(0, 1) != nullptr; }));

  exchanges[0]->Release(3);
  for (uint64_t round = 0; round < 4; ++round) PublishBytes(*exchanges[0], round, Pattern(8, 1));
  ASSERT_TRUE(PollUntil([&] { return exchanges[1]->Peek(0, 0) != nullptr; }));
  At(0).Arm();
  ASSERT_EQ(exchanges[0]->Reserve(4), nullptr);
  const uint64_t rung = At(1).counters().doorbells_rung;
  exchanges[1]->Release(0);
  const uint64_t rings = GetParam().has_common_memory ? 1 : 0;
  EXPECT_EQ(At(1).counters().doorbells_rung, rung + rings);
  At(1).Arm();  // messages report a single release when the rank is about to sleep
  At(1).Disarm();
  Poll(1);
  const double before = MonotonicSeconds();
  At(0).Sleep(kPatience);
  EXPECT_LT(MonotonicSeconds() - before, kPatience / 2);
  At(0).Disarm();
  EXPECT_TRUE(PollUntil([&] { return exchanges[0]->Reserve(4) != nullptr; }));
}

TEST_P(TransportSleepTest, AReleaseThatNobodyWaitsForRingsNobody) {
  Start(2);
  auto exchanges = OpenAll();
  At(0).Arm();
  exchanges[1]->Release(0);
  EXPECT_EQ(At(1).counters().doorbells_rung, 0u);
  At(0).Disarm();
}

TEST_P(TransportSleepTest, ASleepingSenderIsWokenWhenThereIsSpace) {
  if (!GetParam().has_common_memory) GTEST_SKIP() << "the kernel has room for it";
  Start(2);
  At(0).Send(1, {FrameKind::kReport, {}}, Pattern(5000, 1));
  At(0).Arm();
  Poll(0);
  ASSERT_TRUE(At(0).HasUnsent());
  Poll(1);
  EXPECT_EQ(At(1).counters().doorbells_rung, 1u);
  At(0).Sleep(kPatience);
  At(0).Disarm();
  EXPECT_TRUE(PollUntil([&] { return InboxOf(1).frames[0].size() == 1; }));
}

TEST_P(TransportSleepTest, SleepEndsWithItsTime) {
  Start(2);
  At(0).Arm();
  const double before = MonotonicSeconds();
  At(0).Sleep(0.02);
  EXPECT_GE(MonotonicSeconds() - before, 0.019);
  At(0).Disarm();
}

TEST_P(TransportSleepTest, WakeEndsSleepNowOrNextTime) {
  Start(1);
  At(0).Wake();
  const double before = MonotonicSeconds();
  At(0).Arm();
  At(0).Sleep(kPatience);  // the wake-up came first
  At(0).Disarm();
  std::thread waker([&] { At(0).Wake(); });
  At(0).Arm();
  At(0).Sleep(kPatience);
  At(0).Disarm();
  waker.join();
  EXPECT_LT(MonotonicSeconds() - before, kPatience / 2);
}

TEST_P(TransportSleepTest, ASleeperIsWokenByALoss) {
  Start(2);
  At(0).Arm();
  Poll(0);
  std::thread killer([&] { world_->Lose(1); });
  const double before = MonotonicSeconds();
  At(0).Sleep(kPatience);
  EXPECT_LT(MonotonicSeconds() - before, kPatience / 2);
  At(0).Disarm();
  killer.join();
  skipped_ = {1};
  EXPECT_TRUE(PollUntil([&] { return InboxOf(0).lost.size() == 1; }));
}

// Every rank is a thread that sleeps whenever it is idle, while exchange rounds and control frames
// go around a ring. A lost wake-up would show as a sleep that runs to its timeout.
TEST_P(TransportSleepTest, RanksAsThreadsLoseNoWakeUp) {
  constexpr int kSize = 3;
  constexpr uint64_t kRounds = 3000;
  Start(kSize);
  auto exchanges = OpenAll();
  for (int rank = 0; rank < kSize; ++rank) Poll(rank);
  std::atomic<int> overslept{0};
  const auto run = [&](int rank) {
    Transport& transport = At(rank);
    Inbox& inbox = InboxOf(rank);
    Exchange& exchange = *exchanges[static_cast<size_t>(rank)];
    const int before_me = (rank + kSize - 1) % kSize;
    uint64_t published = 0, released = 0, sent = 0;
    const auto step = [&] {
      bool moved = transport.Poll(inbox);
      if (sent < kRounds && sent <= inbox.frames[before_me].size()) {
        transport.Send((rank + 1) % kSize, {FrameKind::kReport, {}}, Pattern(sent % 700, 0));
        ++sent;
        moved = true;
      }
      if (published < kRounds && exchange.Reserve(published) != nullptr) {
        std::memcpy(exchange.Reserve(published), &published, sizeof(published));
        exchange.Publish(published++, sizeof(published));
        moved = true;
      }
      bool all = released < kRounds;
      for (uint32_t m = 0; m < kSize && all; ++m) {
        const std::byte* chunk = exchange.Peek(released, m);
        all = chunk != nullptr;
        EXPECT_TRUE(!all || std::memcmp(chunk, &released, sizeof(released)) == 0);
      }
      if (all) exchange.Release(released++);
      return moved || all;
    };
    const auto finished = [&] {
      return released == kRounds && sent == kRounds && !transport.HasUnsent() &&
             inbox.frames[before_me].size() == kRounds;
    };
    while (!finished() && overslept == 0) {
      if (step()) continue;
      transport.Arm();
      if (!step() && !finished()) {
        const Deadline end = Deadline::After(kPatience);
        transport.Sleep(kPatience);
        if (end.Passed()) ++overslept;
      }
      transport.Disarm();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(overslept, 0);
}

HOROSCALE_INSTANTIATE_TRANSPORT_TEST(TransportSleepTest);

}  // namespace
}  // namespace horoscale
