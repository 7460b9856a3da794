// What every transport guarantees for the data plane (transport/exchange.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>

#include "conformance/transport_fixture.h"

namespace horoscale {
namespace {

class TransportExchangeTest : public TransportTest {};

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST_P(TransportExchangeTest, ExchangeRoundsInAnyOrderOfSteps) {
  constexpr uint64_t kRounds = 30;
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
        Poll(static_cast<int>(self));
        if (random() % 2 == 0 && mine.published < kRounds) {
          if (exchange.Reserve(mine.published) == nullptr) continue;
          PublishBytes(exchange, mine.published, content(mine.published, self));
          ++mine.published;
        } else if (mine.released < kRounds) {
          const std::byte* chunk = exchange.Peek(mine.released, mine.member);
          if (chunk == nullptr) continue;
          const auto expected = content(mine.released, mine.member);
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), chunk));
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

TEST_P(TransportExchangeTest, ABankIsReservedOnlyWhenAllHaveReleasedIt) {
  Start(3);
  auto exchanges = OpenAll();
  Exchange& writer = *exchanges[0];
  for (uint64_t round = 0; round < 4; ++round) PublishBytes(writer, round, Pattern(16, 1));
  EXPECT_EQ(writer.Reserve(4), nullptr);
  exchanges[1]->Release(3);
  exchanges[0]->Release(3);
  EXPECT_EQ(writer.Reserve(4), nullptr) << "member 2 has not released it";
  exchanges[2]->Release(1);
  EXPECT_TRUE(PollUntil([&] { return writer.Reserve(5) != nullptr; }));
  EXPECT_NE(writer.Reserve(4), nullptr);
  EXPECT_EQ(writer.Reserve(6), nullptr);
}

TEST_P(TransportExchangeTest, RoundsMayBeLeftOutAndReleasedTogether) {
  Start(2);
  auto exchanges = OpenAll();
  const auto bytes = Pattern(100, 3);
  PublishBytes(*exchanges[0], 2, bytes);
  EXPECT_EQ(exchanges[1]->Peek(3, 0), nullptr);
  EXPECT_TRUE(PollUntil([&] { return exchanges[1]->Peek(2, 0) != nullptr; }));
  const std::byte* chunk = exchanges[1]->Peek(2, 0);
  ASSERT_NE(chunk, nullptr);
  EXPECT_EQ(std::memcmp(chunk, bytes.data(), bytes.size()), 0);
  for (auto& exchange : exchanges) exchange->Release(9);
  EXPECT_TRUE(PollUntil([&] { return exchanges[0]->Reserve(13) != nullptr; }));
  EXPECT_EQ(exchanges[0]->Reserve(14), nullptr);
}

TEST_P(TransportExchangeTest, AStalledChannelBlocksNeitherTheOthersNorControl) {
  Start(2);
  auto stalled = OpenAll({1, 1});
  auto other = OpenAll({2, 1});
  for (uint64_t round = 0; round < 4; ++round) PublishBytes(*stalled[0], round, Pattern(4096, 1));
  ASSERT_EQ(stalled[0]->Reserve(4), nullptr);
  for (uint64_t round = 0; round < 20; ++round) {
    ASSERT_TRUE(PollUntil([&] { return other[0]->Reserve(round) != nullptr; }));
    PublishBytes(*other[0], round, Pattern(4096, static_cast<uint32_t>(round)));
    ASSERT_TRUE(PollUntil([&] { return other[1]->Peek(round, 0) != nullptr; }));
    for (auto& exchange : other) exchange->Release(round);
  }
  At(0).Send(1, {FrameKind::kReport, {1, 1}}, Pattern(10, 1));
  EXPECT_TRUE(PollUntil([&] { return InboxOf(1).frames[0].size() == 1; }));
}

TEST_P(TransportExchangeTest, MembersMayOpenInAnyOrder) {
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

TEST_P(TransportExchangeTest, AChannelIsOpenedOnce) {
  Start(2);
  auto exchange = Open(0, {0, 1});
  const std::vector<int> ranks = {0, 1};
  Result<std::unique_ptr<Exchange>> again = At(0).Open(kChannel, ranks);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), StatusCode::kInvalidArgument);
}

TEST_P(TransportExchangeTest, MemoryOfAClosedChannelStaysWhileOthersRead) {
  Start(2);
  auto exchanges = OpenAll();
  const auto bytes = Pattern(4096, 5);
  PublishBytes(*exchanges[0], 0, bytes);
  exchanges[0].reset();
  Poll(0);
  auto unrelated = Open(0, {0}, {99, 1});  // would reuse the memory if it were free
  std::memset(unrelated->Reserve(0), 0xff, 4096);
  EXPECT_TRUE(PollUntil([&] { return exchanges[1]->Peek(0, 0) != nullptr; }));
  const std::byte* chunk = exchanges[1]->Peek(0, 0);
  ASSERT_NE(chunk, nullptr);
  EXPECT_EQ(std::memcmp(chunk, bytes.data(), bytes.size()), 0);
}

TEST_P(TransportExchangeTest, AChannelOutlivesTheLossOfAMember) {
  Start(3);
  auto exchanges = OpenAll();
  const auto bytes = Pattern(64, 9);
  PublishBytes(*exchanges[1], 0, bytes);
  ASSERT_TRUE(PollUntil([&] { return exchanges[0]->Peek(0, 1) != nullptr; }));
  world_->Lose(1);
  skipped_ = {1};
  ASSERT_TRUE(PollUntil([&] { return !InboxOf(0).lost.empty(); }));
  EXPECT_EQ(std::memcmp(exchanges[0]->Peek(0, 1), bytes.data(), bytes.size()), 0);
  EXPECT_EQ(exchanges[0]->Peek(1, 1), nullptr);
  exchanges[0].reset();
  auto without = Open(0, {0, 1, 2}, {8, 1});  // never ready, but no crash
  EXPECT_EQ(without->Reserve(0), nullptr);
}

TEST_P(TransportExchangeTest, ThousandChannelsLeaveNothingBehind) {
  // If memory were not given back, these channels would need more than a rank's whole shared
  // memory.
  Start(2, {.banks = {.chunk_bytes = 128 << 10, .banks = 4}, .ring_bytes = 1024});
  const size_t descriptors = OpenDescriptors();
  for (uint32_t i = 1; i <= 1000; ++i) {
    auto exchanges = OpenAll({i % 3, i});
    PublishBytes(*exchanges[0], 0, Pattern(100, i));
    ASSERT_TRUE(PollUntil([&] { return exchanges[1]->Peek(0, 0) != nullptr; }));
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

HOROSCALE_INSTANTIATE_TRANSPORT_TEST(TransportExchangeTest);

}  // namespace
}  // namespace horoscale
