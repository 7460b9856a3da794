// What every transport promises (transport/transport.h, transport/exchange.h).

#include "transport/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "conformance/transport_world.h"
#include "platform/deadline.h"

namespace horoscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kPatience = 20;  // seconds until a test gives up
constexpr ChannelId kChannel = {7, 1};
constexpr MemoryOptions kTiny = {.banks = {.chunk_bytes = 4096, .banks = 4}, .ring_bytes = 1024};

std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> pattern(bytes);
  std::minstd_rand random(seed + 1);
  for (std::byte& b : pattern) b = static_cast<std::byte>(random() >> 8);
  return pattern;
}

class TransportTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  void Start(int size, const MemoryOptions& options = kTiny) {
    world_ = GetParam().make(size, options);
    inboxes_.resize(static_cast<size_t>(size));
  }
  Transport& At(int rank) { return world_->At(rank); }
  Inbox& InboxOf(int rank) { return inboxes_[static_cast<size_t>(rank)]; }
  void Poll(int rank) { At(rank).Poll(InboxOf(rank)); }
  int size() const { return static_cast<int>(inboxes_.size()); }

  // Polls all ranks in turn until the condition holds; false if it doesn't in time.
  bool PollUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(kPatience);
    while (!condition()) {
      if (deadline.Passed()) return false;
      for (int rank = 0; rank < size(); ++rank) {
        if (!skipped_.contains(rank)) Poll(rank);
      }
    }
    return true;
  }

  std::unique_ptr<Exchange> Open(int rank, const std::vector<int>& ranks,
                                 ChannelId channel = kChannel) {
    Result<std::unique_ptr<Exchange>> exchange = At(rank).Open(channel, ranks);
    EXPECT_TRUE(exchange.ok()) << exchange.status().message();
    return exchange.TakeValue();
  }

  // The exchanges of all ranks of one channel, in order of rank, ready to be used.
  std::vector<std::unique_ptr<Exchange>> OpenAll(ChannelId channel = kChannel) {
    std::vector<int> ranks(static_cast<size_t>(size()));
    for (int rank = 0; rank < size(); ++rank) ranks[static_cast<size_t>(rank)] = rank;
    std::vector<std::unique_ptr<Exchange>> exchanges;
    for (const int rank : ranks) exchanges.push_back(Open(rank, ranks, channel));
    EXPECT_TRUE(PollUntil([&] {
      for (auto& exchange : exchanges) {
        if (exchange->Reserve(0) == nullptr) return false;
      }
      return true;
    }));
    return exchanges;
  }

  std::unique_ptr<TransportWorld> world_;
  std::vector<Inbox> inboxes_;
  std::set<int> skipped_;  // PollUntil() leaves them alone
};

void PublishBytes(Exchange& exchange, uint64_t round, std::span<const std::byte> bytes) {
  std::byte* chunk = exchange.Reserve(round);
  ASSERT_NE(chunk, nullptr);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(chunk) % 64, 0u);
  std::memcpy(chunk, bytes.data(), bytes.size());
  exchange.Publish(round, bytes.size());
}

TEST_P(TransportTest, FramesArriveWholeAndInOrderWhateverTheirSize) {
  Start(2);
  const std::vector<size_t> sizes = {0, 1, 7, 63, 0, 1007, 1008, 1009, 1024, 4097, 300'001, 3, 0};
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    for (const int from : {0, 1}) {  // both ways at once
      At(from).Send(1 - from, {FrameKind::kReport, {i, 2}}, Pattern(sizes[i], i));
    }
  }
  EXPECT_TRUE(At(0).HasUnsent());
  ASSERT_TRUE(PollUntil([&] {
    return InboxOf(0).frames[1].size() == sizes.size() &&
           InboxOf(1).frames[0].size() == sizes.size();
  }));
  EXPECT_FALSE(At(0).HasUnsent());
  for (const int to : {0, 1}) {
    for (uint32_t i = 0; i < sizes.size(); ++i) {
      const Inbox::Received& frame = InboxOf(to).frames[1 - to][i];
      EXPECT_EQ(frame.header.kind, FrameKind::kReport);
      EXPECT_EQ(frame.header.channel, (ChannelId{i, 2}));
      EXPECT_TRUE(frame.payload == Pattern(sizes[i], i)) << "frame " << i << " to " << to;
    }
  }
  EXPECT_EQ(At(0).counters().control_frames_sent, sizes.size());
  EXPECT_EQ(At(0).counters().control_frames_received, sizes.size());
}

TEST_P(TransportTest, EveryPairOfRanksHasItsOwnOrder) {
  for (const int size : {1, 2, 3, 5, 8}) {
    Start(size);
    std::mt19937 random(static_cast<uint32_t>(size));
    std::map<std::pair<int, int>, uint32_t> sent;
    for (int i = 0; i < 2000 && size > 1; ++i) {
      const int from = static_cast<int>(random() % static_cast<uint32_t>(size));
      const int to = static_cast<int>(random() % static_cast<uint32_t>(size));
      if (random() % 4 == 0) Poll(from);
      if (from == to) continue;
      const uint32_t number = sent[{from, to}]++;
      At(from).Send(to, {FrameKind::kPlan, {number, 0}}, Pattern(random() % 200, number));
    }
    ASSERT_TRUE(PollUntil([&] {
      for (const auto& [pair, count] : sent) {
        if (InboxOf(pair.second).frames[pair.first].size() < count) return false;
      }
      return true;
    }));
    for (const auto& [pair, count] : sent) {
      const auto& frames = InboxOf(pair.second).frames[pair.first];
      ASSERT_EQ(frames.size(), count);
      for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(frames[i].header.channel.process_set, i);
    }
    inboxes_.clear();
  }
}

TEST_P(TransportTest, ExchangeRoundsInAnyOrderOfSteps) {
  constexpr uint64_t kRounds = 60;
  for (const int size : {1, 2, 3, 8}) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE("size " + std::to_string(size) + " seed " + std::to_string(seed));
      Start(size);
      auto exchanges = OpenAll();
      struct Progress {
        uint64_t published = 0;
        uint64_t released = 0;
        uint32_t member = 0;  // whose chunk is read next
      };
      std::vector<Progress> at(static_cast<size_t>(size));
      const auto content = [](uint64_t round, uint32_t member) {
        return Pattern((round * 131 + member * 17) % 4097,
                       static_cast<uint32_t>(round * 8 + member));
      };
      std::mt19937 random(seed);
      const Deadline deadline = Deadline::After(kPatience);
      size_t finished = 0;
      while (finished < at.size()) {
        ASSERT_FALSE(deadline.Passed());
        const uint32_t self = static_cast<uint32_t>(random() % at.size());
        Progress& mine = at[self];
        Exchange& exchange = *exchanges[self];
        if (random() % 2 == 0 && mine.published < kRounds) {
          if (exchange.Reserve(mine.published) == nullptr) continue;
          PublishBytes(exchange, mine.published, content(mine.published, self));
          ++mine.published;
        } else if (mine.released < kRounds) {
          const std::byte* chunk = exchange.Peek(mine.released, mine.member);
          if (chunk == nullptr) continue;
          const auto expected = content(mine.released, mine.member);
          ASSERT_EQ(std::memcmp(chunk, expected.data(), expected.size()), 0);
          if (++mine.member < at.size()) continue;
          mine.member = 0;
          exchange.Release(mine.released);
          if (++mine.released == kRounds) ++finished;
        }
      }
      exchanges.clear();
      inboxes_.clear();
    }
  }
}

TEST_P(TransportTest, ABankIsReservedOnlyWhenAllHaveReleasedIt) {
  Start(3);
  auto exchanges = OpenAll();
  Exchange& writer = *exchanges[0];
  for (uint64_t round = 0; round < 4; ++round) PublishBytes(writer, round, Pattern(16, 1));
  EXPECT_EQ(writer.Reserve(4), nullptr);
  exchanges[1]->Release(3);
  exchanges[0]->Release(3);
  EXPECT_EQ(writer.Reserve(4), nullptr) << "member 2 has not released it";
  exchanges[2]->Release(1);
  EXPECT_NE(writer.Reserve(4), nullptr);
  EXPECT_NE(writer.Reserve(5), nullptr);
  EXPECT_EQ(writer.Reserve(6), nullptr);
}

TEST_P(TransportTest, RoundsMayBeLeftOutAndReleasedTogether) {
  Start(2);
  auto exchanges = OpenAll();
  const auto bytes = Pattern(100, 3);
  PublishBytes(*exchanges[0], 2, bytes);
  EXPECT_EQ(exchanges[1]->Peek(3, 0), nullptr);
  const std::byte* chunk = exchanges[1]->Peek(2, 0);
  ASSERT_NE(chunk, nullptr);
  EXPECT_EQ(std::memcmp(chunk, bytes.data(), bytes.size()), 0);
  for (auto& exchange : exchanges) exchange->Release(9);
  EXPECT_NE(exchanges[0]->Reserve(13), nullptr);
  EXPECT_EQ(exchanges[0]->Reserve(14), nullptr);
}

TEST_P(TransportTest, AStalledChannelBlocksNeitherTheOthersNorControl) {
  Start(2);
  auto stalled = OpenAll({1, 1});
  auto other = OpenAll({2, 1});
  for (uint64_t round = 0; round < 4; ++round) PublishBytes(*stalled[0], round, Pattern(4096, 1));
  ASSERT_EQ(stalled[0]->Reserve(4), nullptr);
  for (uint64_t round = 0; round < 20; ++round) {
    PublishBytes(*other[0], round, Pattern(4096, static_cast<uint32_t>(round)));
    ASSERT_NE(other[1]->Peek(round, 0), nullptr);
    for (auto& exchange : other) exchange->Release(round);
  }
  At(0).Send(1, {FrameKind::kReport, {1, 1}}, Pattern(10, 1));
  EXPECT_TRUE(PollUntil([&] { return InboxOf(1).frames[0].size() == 1; }));
}

TEST_P(TransportTest, MembersMayOpenInAnyOrder) {
  Start(2);
  auto early = Open(0, {0, 1});
  for (int i = 0; i < 10; ++i) {
    Poll(0);
    Poll(1);
  }
  EXPECT_EQ(early->Reserve(0), nullptr) << "the other's memory is not known yet";
  EXPECT_EQ(early->Peek(0, 1), nullptr);
  auto late = Open(1, {0, 1});
  ASSERT_NE(late->Reserve(0), nullptr) << "announced before, and remembered";
  PublishBytes(*late, 0, Pattern(8, 1));
  ASSERT_TRUE(PollUntil([&] { return early->Peek(0, 1) != nullptr; }));
}

TEST_P(TransportTest, AChannelIsOpenedOnce) {
  Start(2);
  auto exchange = Open(0, {0, 1});
  const std::vector<int> ranks = {0, 1};
  Result<std::unique_ptr<Exchange>> again = At(0).Open(kChannel, ranks);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), StatusCode::kInvalidArgument);
}

TEST_P(TransportTest, MemoryOfAClosedChannelStaysWhileOthersRead) {
  Start(2);
  auto exchanges = OpenAll();
  const auto bytes = Pattern(4096, 5);
  PublishBytes(*exchanges[0], 0, bytes);
  exchanges[0].reset();
  Poll(0);
  auto unrelated = Open(0, {0}, {99, 1});  // would take the memory if it were free
  std::memset(unrelated->Reserve(0), 0xff, 4096);
  const std::byte* chunk = exchanges[1]->Peek(0, 0);
  ASSERT_NE(chunk, nullptr);
  EXPECT_EQ(std::memcmp(chunk, bytes.data(), bytes.size()), 0);
}

TEST_P(TransportTest, SharedMemoryIsSeenByPeersAtItsOffset) {
  Start(2);
  Result<std::byte*> memory = At(0).AllocateShared(100'000);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % 64, 0u);
  EXPECT_TRUE(
      std::all_of(*memory, *memory + 100'000, [](std::byte b) { return b == std::byte{0}; }));
  const int64_t offset = At(0).SharedOffset(*memory + 10, 99'990);
  ASSERT_GE(offset, 0);
  std::byte* seen = At(1).SharedAddress(0, offset, 99'990);
  ASSERT_NE(seen, nullptr);
  seen[99'989] = std::byte{42};
  EXPECT_EQ((*memory)[99'999], std::byte{42});

  std::byte local[8];
  EXPECT_EQ(At(0).SharedOffset(local, sizeof(local)), -1);
  EXPECT_EQ(At(0).SharedOffset(*memory, size_t{1} << 62), -1);
  EXPECT_EQ(At(1).SharedAddress(0, offset, size_t{1} << 62), nullptr);
  EXPECT_EQ(At(1).SharedAddress(0, -5, 1), nullptr);
  At(0).FreeShared(*memory);
}

TEST_P(TransportTest, ALostRankIsSaidOnceAndAfterItsFrames) {
  Start(3);
  for (uint32_t i = 0; i < 50; ++i) {
    At(1).Send(0, {FrameKind::kReport, {i, 0}}, Pattern(1, i));
  }
  world_->Lose(1);
  skipped_ = {1};
  ASSERT_TRUE(PollUntil([&] { return !InboxOf(0).lost.empty() && !InboxOf(2).lost.empty(); }));
  for (int i = 0; i < 10; ++i) Poll(0);
  ASSERT_EQ(InboxOf(0).lost.size(), 1u);
  const auto& [rank, reason] = InboxOf(0).lost[0];
  EXPECT_EQ(rank, 1);
  EXPECT_EQ(reason.code(), StatusCode::kRankFailed);
  EXPECT_THAT(reason.message(), HasSubstr("rank 1"));
  EXPECT_THAT(reason.detail().ranks, ElementsAre(1));
  EXPECT_GT(InboxOf(0).frames_when_lost[1], 0u);
  EXPECT_EQ(InboxOf(0).frames_when_lost[1], InboxOf(0).frames[1].size());

  At(0).Send(1, {FrameKind::kReport, {}}, Pattern(5000, 1));  // goes nowhere, does no harm
  EXPECT_FALSE(At(0).HasUnsent());
  At(0).Send(2, {FrameKind::kReport, {}}, Pattern(5, 1));
  EXPECT_TRUE(PollUntil([&] { return InboxOf(2).frames[0].size() == 1; }));
}

TEST_P(TransportTest, GoodbyeIsTheLastFrameAndComesBeforeTheLoss) {
  Start(2);
  At(1).Send(0, {FrameKind::kReport, {}}, Pattern(500, 1));
  const auto last = Pattern(30, 2);
  At(1).Close(last, kPatience);
  skipped_ = {1};
  ASSERT_TRUE(PollUntil([&] { return !InboxOf(0).lost.empty(); }));
  const auto& frames = InboxOf(0).frames[1];
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(InboxOf(0).frames_when_lost[1], 2u);
  EXPECT_EQ(frames[1].header.kind, FrameKind::kGoodbye);
  EXPECT_TRUE(frames[1].payload == last);
  EXPECT_EQ(InboxOf(0).lost.size(), 1u);
}

TEST_P(TransportTest, CloseGivesUpOnAPeerThatDoesNotRead) {
  Start(2);
  At(1).Send(0, {FrameKind::kReport, {}}, Pattern(100'000, 1));
  At(1).Close(Pattern(30, 2), 0.01);  // returns, although rank 0 reads nothing
  skipped_ = {1};
  ASSERT_TRUE(PollUntil([&] { return !InboxOf(0).lost.empty(); }));
  EXPECT_TRUE(InboxOf(0).frames[1].empty()) << "half a frame was delivered";
}

TEST_P(TransportTest, AChannelOutlivesTheLossOfAMember) {
  Start(3);
  auto exchanges = OpenAll();
  const auto bytes = Pattern(64, 9);
  PublishBytes(*exchanges[1], 0, bytes);
  ASSERT_NE(exchanges[0]->Peek(0, 1), nullptr);
  world_->Lose(1);
  skipped_ = {1};
  ASSERT_TRUE(PollUntil([&] { return !InboxOf(0).lost.empty(); }));
  EXPECT_EQ(std::memcmp(exchanges[0]->Peek(0, 1), bytes.data(), bytes.size()), 0);
  EXPECT_EQ(exchanges[0]->Peek(1, 1), nullptr);
  exchanges[0].reset();
  auto without = Open(0, {0, 1, 2}, {8, 1});  // never ready, but no crash
  EXPECT_EQ(without->Reserve(0), nullptr);
}

TEST_P(TransportTest, ASleeperIsWokenByAFrame) {
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
  EXPECT_EQ(At(1).counters().doorbells_rung, 1u) << "once a sleep";
  At(1).Send(0, {FrameKind::kReport, {}}, {});
  EXPECT_EQ(At(1).counters().doorbells_rung, 1u) << "nobody sleeps";
}

TEST_P(TransportTest, ASleeperIsWokenByAChunkAndByARelease) {
  Start(2);
  auto exchanges = OpenAll();
  At(0).Arm();
  PublishBytes(*exchanges[1], 0, Pattern(8, 1));
  At(0).Sleep(kPatience);
  At(0).Disarm();
  EXPECT_NE(exchanges[0]->Peek(0, 1), nullptr);

  exchanges[0]->Release(3);
  for (uint64_t round = 0; round < 4; ++round) PublishBytes(*exchanges[0], round, Pattern(8, 1));
  At(0).Arm();
  ASSERT_EQ(exchanges[0]->Reserve(4), nullptr);
  const uint64_t rung = At(1).counters().doorbells_rung;
  exchanges[1]->Release(0);
  EXPECT_EQ(At(1).counters().doorbells_rung, rung + 1);
  At(0).Sleep(kPatience);
  At(0).Disarm();
  EXPECT_NE(exchanges[0]->Reserve(4), nullptr);
}

TEST_P(TransportTest, AReleaseThatNobodyWaitsForRingsNobody) {
  Start(2);
  auto exchanges = OpenAll();
  At(0).Arm();
  exchanges[1]->Release(0);
  EXPECT_EQ(At(1).counters().doorbells_rung, 0u);
  At(0).Disarm();
}

TEST_P(TransportTest, ASleepingSenderIsWokenWhenThereIsSpace) {
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

TEST_P(TransportTest, SleepEndsWithItsTime) {
  Start(2);
  At(0).Arm();
  const double before = MonotonicSeconds();
  At(0).Sleep(0.02);
  EXPECT_GE(MonotonicSeconds() - before, 0.019);
  At(0).Disarm();
}

TEST_P(TransportTest, WakeEndsSleepNowOrNextTime) {
  Start(1);
  At(0).Wake();
  const double before = MonotonicSeconds();
  At(0).Arm();
  At(0).Sleep(kPatience);  // the wake came before
  At(0).Disarm();
  std::thread waker([&] { At(0).Wake(); });
  At(0).Arm();
  At(0).Sleep(kPatience);
  At(0).Disarm();
  waker.join();
  EXPECT_LT(MonotonicSeconds() - before, kPatience / 2);
}

TEST_P(TransportTest, ASleeperIsWokenByALoss) {
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

// Every rank is a thread that sleeps whenever it has nothing to do: rounds of the exchange and
// control frames around a circle at the same time. A lost wake-up would show as a sleep to its end.
TEST_P(TransportTest, RanksAsThreadsLoseNoWakeUp) {
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

INSTANTIATE_TEST_SUITE_P(All, TransportTest, ::testing::ValuesIn(AllTransportKinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace horoscale
