// What every transport guarantees for control frames, shared memory and the loss of a rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "conformance/transport_fixture.h"
#include "transport/shm/staging_areas.h"

namespace horoscale {
namespace {

using ::testing::ElementsAre;

TEST_P(TransportTest, FramesArriveWholeAndInOrderWhateverTheirSize) {
  Start(2);
  const std::vector<size_t> sizes = {0, 1, 7, 63, 0, 1007, 1008, 1009, 1024, 4097, 300'001, 3, 0};
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    for (const int from : {0, 1}) {  // both ways at once
      At(from).Send(1 - from, {FrameKind::kReport, {i, 2}}, Pattern(sizes[i], i));
    }
  }
  // More than a ring holds; sockets may accept it.
  EXPECT_TRUE(At(0).HasUnsent() || !GetParam().has_common_memory);
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

TEST_P(TransportTest, SharedMemoryIsSeenByPeersAtItsOffset) {
  if (!GetParam().has_common_memory) GTEST_SKIP() << "ranks of different hosts have none";
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

TEST_P(TransportTest, AreasThatAreIdleGiveTheirMemoryBack) {
  if (!GetParam().has_common_memory) GTEST_SKIP() << "ranks of different hosts have none";
  Start(2);
  StagingAreas* const areas = At(0).StagingWith(1);
  if (areas == nullptr) GTEST_SKIP() << "private memory can't be read here";
  constexpr double kIdle = StagingAreas::kIdleSeconds;
  const int64_t offset = areas->OffsetFor(1);
  ASSERT_GE(offset, 0);
  std::byte* const area = At(0).SharedAddress(0, offset, kStagingAreaBytes);
  std::byte* const cell = area + kStagingCellsOffset;
  const auto pages = [cell] {
    std::vector<unsigned char> there(kStagingCellsBytes / Arena::kPageBytes);
    EXPECT_EQ(mincore(cell, kStagingCellsBytes, there.data()), 0);
    return std::count_if(there.begin(), there.end(), [](auto page) { return (page & 1) != 0; });
  };
  area[8] = std::byte{1};
  At(0).GiveBackIdle(100);
  for (const double begin : {100.0, 200.0}) {  // an area can be reused
    const std::vector<std::byte> message = Pattern(kLeastStagedBytes, 1);
    areas->Serve(1, 1, message);
    std::memset(cell, 5, kStagingCellsBytes);
    At(0).GiveBackIdle(begin);
    At(0).GiveBackIdle(begin + 2 * kIdle);  // it has been in use all the time
    EXPECT_EQ(pages(), kStagingCellsBytes / Arena::kPageBytes);
    areas->Stop(1, 1);
    At(0).GiveBackIdle(begin + 3 * kIdle - 0.1);
    EXPECT_EQ(pages(), kStagingCellsBytes / Arena::kPageBytes);
    At(0).GiveBackIdle(begin + 3 * kIdle);
    EXPECT_EQ(pages(), 0);
    EXPECT_EQ(area[8], std::byte{1});  // its counters are kept
  }
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
  EXPECT_FALSE(reason.message().empty());
  EXPECT_THAT(reason.detail().ranks, ElementsAre(1));
  EXPECT_GT(InboxOf(0).frames_when_lost[1], 0u);
  EXPECT_EQ(InboxOf(0).frames_when_lost[1], InboxOf(0).frames[1].size());

  At(0).Send(1, {FrameKind::kReport, {}}, Pattern(5000, 1));  // is dropped
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
  if (!GetParam().has_common_memory) GTEST_SKIP() << "the kernel has room for it";
  Start(2);
  At(1).Send(0, {FrameKind::kReport, {}}, Pattern(100'000, 1));
  At(1).Close(Pattern(30, 2), 0.01);  // returns although rank 0 reads nothing
  skipped_ = {1};
  ASSERT_TRUE(PollUntil([&] { return !InboxOf(0).lost.empty(); }));
  EXPECT_TRUE(InboxOf(0).frames[1].empty()) << "half a frame was delivered";
}

HOROSCALE_INSTANTIATE_TRANSPORT_TEST(TransportTest);

}  // namespace
}  // namespace horoscale
