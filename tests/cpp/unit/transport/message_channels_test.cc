#include "transport/message/message_channels.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace horoscale {
namespace {

class Nowhere final : public MessagePost {
 public:
  void PostMessage(int, const MessageHeader&) override {}
  void PostChunk(int, const MessageHeader&, std::span<const std::byte>,
                 const std::shared_ptr<const void>&, uint32_t*) override {}
};

// Rank 0, whose peers are reached by messages.
class MessageChannelsTest : public ::testing::Test {
 protected:
  Status Opened(int from, ChannelId channel, bool is_over = false) {
    MessageHeader header{};
    header.type = MessageType::kOpened;
    header.process_set = channel.process_set;
    header.incarnation = channel.incarnation;
    return channels_.OnMessage(from, header, is_over);
  }
  auto Open(ChannelId channel) {
    const std::vector<int> ranks = {0, 1, 2};
    return channels_.Open(channel, ranks, [](int rank) { return rank != 0; }, {});
  }

  Nowhere nowhere_;
  TransportCounters counters_;
  MessageChannels channels_{0, &nowhere_, &counters_};
};

TEST_F(MessageChannelsTest, ChannelsThatNobodyOpensHereAreBoundedForEachPeer) {
  Status status;
  uint32_t accepted = 0;
  for (; status.ok() && accepted < 1'000'000; ++accepted) status = Opened(1, {accepted, 1});
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
  EXPECT_NE(status.message().find("rank 1 "), std::string::npos) << status.message();
  EXPECT_TRUE(Opened(2, {accepted, 1}).ok());
}

TEST_F(MessageChannelsTest, ChannelsThatOnlyPeersOpenedEndWithTheirSet) {
  for (uint32_t incarnation = 1; incarnation < 20'000; ++incarnation) {
    const ChannelId channel{1, incarnation};
    ASSERT_TRUE(Opened(1, channel).ok()) << incarnation;
    channels_.Forget(channel);
    ASSERT_TRUE(Opened(2, channel, true).ok()) << "it was still on its way";
  }
}

TEST_F(MessageChannelsTest, WhatALostRankOpenedAloneIsForgotten) {
  for (uint32_t i = 0; i < 4096; ++i) ASSERT_TRUE(Opened(1, {i, 1}).ok());
  channels_.OnRankLost(1);
  for (uint32_t i = 0; i < 4096; ++i) ASSERT_TRUE(Opened(1, {i, 1}).ok());
}

TEST_F(MessageChannelsTest, AClosedChannelWaitsForNoLostRank) {
  const ChannelId channel{1, 1};
  auto exchange = Open(channel);
  ASSERT_TRUE(exchange.ok());
  ASSERT_TRUE(Opened(1, channel).ok());
  exchange->reset();
  EXPECT_FALSE(Open(channel).ok()) << "rank 2 may still open it";
  channels_.OnRankLost(2);
  EXPECT_TRUE(Open(channel).ok()) << "nothing of it is left";
}

// Records what is posted, to linked and unlinked ranks.
class LazyPost final : public MessagePost {
 public:
  void PostMessage(int rank, const MessageHeader& header) override {
    EXPECT_EQ(states[rank], LinkState::kUp);
    if (header.type == MessageType::kOpened) ++opened[rank];
  }
  void PostChunk(int rank, const MessageHeader& header, std::span<const std::byte>,
                 const std::shared_ptr<const void>&, uint32_t*) override {
    EXPECT_EQ(states[rank], LinkState::kUp);
    chunks[rank].push_back(header.round);
  }
  LinkState StateOf(int rank) const override { return states.at(rank); }
  void Reach(int rank) override { ++reached[rank]; }

  std::map<int, LinkState> states = {
      {1, LinkState::kUp}, {2, LinkState::kNone}, {3, LinkState::kNone}};
  std::map<int, int> opened, reached;
  std::map<int, std::vector<uint64_t>> chunks;
};

// Rank 0, which has a link to rank 1 and none to ranks 2 and 3.
class LazyChannels : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<int> ranks = {0, 1, 2, 3};
    exchange_ = channels_.Open({7, 1}, ranks, [](int rank) { return rank != 0; }, {}).TakeValue();
  }
  void Opened(int from) {
    MessageHeader header{};
    header.type = MessageType::kOpened;
    header.process_set = 7;
    header.incarnation = 1;
    ASSERT_TRUE(channels_.OnMessage(from, header, false).ok());
  }
  void Link(int rank) {
    post_.states[rank] = MessagePost::LinkState::kUp;
    channels_.OnLinked(rank);
  }
  // For members 1 and 2.
  void Publish(uint64_t round) {
    ASSERT_NE(exchange_->Reserve(round), nullptr);
    exchange_->Publish(round, 8, std::vector<Exchange::Extent>{{}, {0, 8}, {0, 8}, {}});
    exchange_->Release(round);
  }

  LazyPost post_;
  TransportCounters counters_;
  MessageChannels channels_{0, &post_, &counters_};
  std::unique_ptr<MessageExchange> exchange_;
};

TEST_F(LazyChannels, MembersWithALinkAreWaitedForAndOthersAreNot) {
  EXPECT_EQ(post_.opened, (std::map<int, int>{{1, 1}}));
  EXPECT_EQ(exchange_->Reserve(0), nullptr);
  Opened(1);
  EXPECT_NE(exchange_->Reserve(0), nullptr);
  EXPECT_TRUE(post_.reached.empty()) << "opening needs no link";
}

TEST_F(LazyChannels, AChunkForAMemberWithoutALinkWaitsUntilThatHasOpened) {
  Opened(1);
  Publish(0);
  Publish(1);
  EXPECT_EQ(post_.chunks[1], (std::vector<uint64_t>{0, 1}));
  EXPECT_GT(post_.reached[2], 0);
  EXPECT_EQ(post_.reached[3], 0);
  EXPECT_EQ(post_.waiting_chunks, 2u);
  Link(2);
  EXPECT_EQ(post_.opened[2], 1);
  EXPECT_TRUE(post_.chunks[2].empty());
  EXPECT_EQ(exchange_->Reserve(2), nullptr) << "it is about to open";
  Opened(2);
  EXPECT_EQ(post_.chunks[2], (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(post_.waiting_chunks, 0u);
  Publish(2);
  EXPECT_EQ(post_.chunks[2].back(), 2u);
}

TEST_F(LazyChannels, WhatWaitsForALostMemberIsForgotten) {
  Opened(1);
  Publish(0);
  post_.states[2] = MessagePost::LinkState::kLost;
  channels_.OnRankLost(2);
  EXPECT_EQ(post_.waiting_chunks, 0u);
  Publish(1);
  EXPECT_EQ(post_.waiting_chunks, 0u);
  EXPECT_TRUE(post_.chunks[2].empty());
}

TEST_F(LazyChannels, ALostMemberHoldsUpNothing) {
  EXPECT_EQ(exchange_->Reserve(0), nullptr) << "rank 1 is about to open";
  post_.states[1] = MessagePost::LinkState::kLost;
  channels_.OnRankLost(1);
  EXPECT_NE(exchange_->Reserve(0), nullptr);
  const std::vector<int> ranks = {0, 1, 2};
  const auto is_served = [](int rank) { return rank != 0; };
  auto later = channels_.Open({8, 1}, ranks, is_served, {}).TakeValue();
  EXPECT_NE(later->Reserve(0), nullptr) << "rank 1 was lost before";
}

TEST_F(LazyChannels, AnExchangeThatEndsWaitsNoMore) {
  Opened(1);
  Publish(0);
  exchange_.reset();
  EXPECT_EQ(post_.waiting_chunks, 0u);
  Link(3);
  EXPECT_EQ(post_.opened[3], 0);
}

// Without forgetting it, members that never had a link would have to make one.
TEST_F(LazyChannels, AChannelThatIsOverIsForgottenWhenItIsClosed) {
  for (uint32_t incarnation = 2; incarnation < 5; ++incarnation) {
    const std::vector<int> ranks = {0, 1, 2, 3};
    const auto is_served = [](int rank) { return rank != 0; };
    auto exchange = channels_.Open({8, incarnation}, ranks, is_served, {}).TakeValue();
    channels_.Forget({8, incarnation});
    exchange.reset();
    EXPECT_TRUE(channels_.Open({8, incarnation}, ranks, is_served, {}).ok()) << "nothing is left";
  }
}

}  // namespace
}  // namespace horoscale
