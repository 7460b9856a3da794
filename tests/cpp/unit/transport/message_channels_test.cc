#include "transport/message/message_channels.h"

#include <gtest/gtest.h>

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

// Rank 0, which its peers reach by messages.
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

}  // namespace
}  // namespace horoscale
