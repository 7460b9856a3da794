#include "transport/memory/channel_table.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace horoscale {
namespace {

constexpr BankGeometry kGeometry = {.chunk_bytes = 4096, .banks = 4};
constexpr ChannelId kChannel = {1, 1};

// Rank 0 of three; the peers' blocks are at offsets 0 and 64 of some memory.
class ChannelTableTest : public ::testing::Test, public ChannelHost {
 protected:
  Result<std::byte*> AllocateBlock(size_t bytes) override {
    blocks_.push_back(std::make_unique<Block>());
    EXPECT_LE(bytes, sizeof(Block));
    ++live_blocks_;
    return blocks_.back()->bytes.data();
  }
  void FreeBlock(std::byte*) override { --live_blocks_; }
  std::byte* PeerBlock(int, int64_t offset, size_t) override {
    return offset >= 0 && offset < 128 ? peers_.bytes.data() + offset : nullptr;
  }
  int64_t OwnOffset(const std::byte*, size_t) const override { return -1; }
  void Notify(int rank, ChannelId, BankNotice::Type type, const std::byte*) override {
    notices_[rank].push_back(type);
  }
  bool IsLost(int) const override { return false; }
  Doorbell* DoorbellOf(int) override { return &doorbell_; }

  Status Notice(int from, BankNotice::Type type, int64_t offset = 0) {
    return NoticeOf(kChannel, from, type, offset);
  }
  Status NoticeOf(ChannelId channel, int from, BankNotice::Type type, int64_t offset = 0,
                  bool is_over = false) {
    const BankNotice notice{type, offset};
    return table_.OnNotice(from, channel, std::as_bytes(std::span(&notice, 1)), is_over);
  }
  Result<std::unique_ptr<Exchange>> Open() {
    const std::vector<int> ranks = {0, 1, 2};
    return table_.Open(kChannel, ranks);
  }

  struct Block {
    alignas(64) std::array<std::byte, BlockBytes(kGeometry)> bytes = {};
  };
  std::vector<std::unique_ptr<Block>> blocks_;
  Block peers_;
  int live_blocks_ = 0;
  std::map<int, std::vector<BankNotice::Type>> notices_;
  SleepFlag sleeping_{0};
  EventFd event_ = EventFd::Create().TakeValue();
  Doorbell doorbell_{&sleeping_, &event_};
  TransportCounters counters_;
  ChannelTable table_{0, kGeometry, this, &counters_};
};

using Type = BankNotice::Type;

TEST_F(ChannelTableTest, ABlockIsFreedWhenTheLastMemberHasClosed) {
  auto exchange = Open().TakeValue();
  EXPECT_TRUE(Notice(1, Type::kOpened).ok());
  EXPECT_TRUE(Notice(2, Type::kOpened, 64).ok());
  EXPECT_TRUE(Notice(1, Type::kClosed).ok());
  exchange.reset();
  EXPECT_EQ(live_blocks_, 1);
  EXPECT_TRUE(Notice(2, Type::kClosed).ok());
  EXPECT_EQ(live_blocks_, 0);
  EXPECT_EQ(notices_[1], (std::vector<Type>{Type::kOpened, Type::kClosed}));
}

TEST_F(ChannelTableTest, ALostMemberCountsAsClosed) {
  auto exchange = Open().TakeValue();
  table_.OnRankLost(1);
  exchange.reset();
  EXPECT_EQ(live_blocks_, 1);
  table_.OnRankLost(2);
  EXPECT_EQ(live_blocks_, 0);
}

TEST_F(ChannelTableTest, NoticesThatCannotBeAreErrors) {
  EXPECT_EQ(Notice(1, Type::kClosed).code(), StatusCode::kProtocol);
  EXPECT_EQ(Notice(1, Type::kOpened, -64).code(), StatusCode::kProtocol);
  EXPECT_EQ(Notice(1, Type::kOpened, 8).code(), StatusCode::kProtocol) << "not aligned";
  EXPECT_EQ(Notice(1, Type::kOpened, 1 << 20).code(), StatusCode::kProtocol);
  EXPECT_TRUE(Notice(1, Type::kOpened, 64).ok());
  EXPECT_EQ(Notice(1, Type::kOpened, 64).code(), StatusCode::kProtocol) << "twice";
  EXPECT_EQ(Notice(1, static_cast<Type>(7)).code(), StatusCode::kProtocol);
  const std::byte three_bytes[3] = {};
  EXPECT_EQ(table_.OnNotice(1, kChannel, three_bytes, false).code(), StatusCode::kProtocol);
}

TEST_F(ChannelTableTest, OnlyMembersMayAnnounce) {
  auto exchange = Open().TakeValue();
  EXPECT_EQ(Notice(5, Type::kOpened).code(), StatusCode::kProtocol);
}

TEST_F(ChannelTableTest, ChannelsThatNobodyOpensHereAreBoundedForEachPeer) {
  Status status;
  uint32_t accepted = 0;
  for (; status.ok() && accepted < 1'000'000; ++accepted) {
    status = NoticeOf({accepted, 1}, 1, Type::kOpened);
  }
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
  EXPECT_NE(status.message().find("rank 1 "), std::string::npos) << status.message();
  EXPECT_TRUE(NoticeOf({accepted, 1}, 2, Type::kOpened).ok()) << "it has opened one";
}

TEST_F(ChannelTableTest, ChannelsThatOnlyPeersOpenedEndWithTheirSet) {
  for (uint32_t incarnation = 1; incarnation < 20'000; ++incarnation) {
    const ChannelId channel{1, incarnation};
    ASSERT_TRUE(NoticeOf(channel, 1, Type::kOpened).ok()) << incarnation;
    ASSERT_TRUE(NoticeOf(channel, 2, Type::kOpened).ok()) << incarnation;
    if (incarnation % 2 == 0) {
      ASSERT_TRUE(NoticeOf(channel, 1, Type::kClosed).ok());
    }
    table_.Forget(channel);
    // Notices that were still in flight.
    ASSERT_TRUE(NoticeOf(channel, 2, Type::kClosed, 0, true).ok());
    ASSERT_TRUE(NoticeOf(channel, 1, Type::kOpened, 0, true).ok());
  }
}

TEST_F(ChannelTableTest, WhatIsOpenHereIsNotForgotten) {
  auto exchange = Open().TakeValue();
  table_.Forget(kChannel);
  EXPECT_TRUE(NoticeOf(kChannel, 1, Type::kOpened, 0, true).ok());
  exchange.reset();
  EXPECT_EQ(live_blocks_, 1);
  EXPECT_TRUE(NoticeOf(kChannel, 1, Type::kClosed, 0, true).ok());
  EXPECT_TRUE(NoticeOf(kChannel, 2, Type::kOpened, 0, true).ok());
  EXPECT_TRUE(NoticeOf(kChannel, 2, Type::kClosed, 0, true).ok());
  EXPECT_EQ(live_blocks_, 0);
}

TEST_F(ChannelTableTest, WhatALostRankOpenedAloneIsForgotten) {
  for (uint32_t i = 0; i < 4096; ++i) ASSERT_TRUE(NoticeOf({i, 1}, 1, Type::kOpened).ok());
  table_.OnRankLost(1);
  // As if it had never existed.
  EXPECT_EQ(NoticeOf({7, 1}, 1, Type::kClosed).code(), StatusCode::kProtocol);
  for (uint32_t i = 0; i < 4096; ++i) ASSERT_TRUE(NoticeOf({i, 1}, 1, Type::kOpened).ok());
}

TEST_F(ChannelTableTest, AnExchangeMayBeDestroyedAfterItsTransport) {
  auto table = std::make_unique<ChannelTable>(0, kGeometry, this, &counters_);
  const std::vector<int> ranks = {0, 1};
  auto exchange = table->Open(kChannel, ranks).TakeValue();
  table.reset();
  exchange.reset();
}

}  // namespace
}  // namespace horoscale
