#include "transport/memory/frame_stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/codec.h"

namespace horoscale {
namespace {

constexpr size_t kCapacity = 256;

class FrameStreamTest : public ::testing::Test {
 protected:
  void WriteRaw(const FramePrefix& prefix) {
    ASSERT_TRUE(raw_.Append(std::as_bytes(std::span(&prefix, 1))).ok());
    raw_.Commit();
  }

  alignas(64) std::byte memory_[RingMemoryBytes(kCapacity)] = {};
  SleepFlag sleeping_{0};
  EventFd event_ = EventFd::Create().TakeValue();
  Doorbell doorbell_{&sleeping_, &event_};
  RingProducer raw_{memory_, kCapacity};
  FrameWriter writer_{RingProducer(memory_, kCapacity), &doorbell_};
  FrameReader reader_{RingConsumer(memory_, kCapacity), &doorbell_};
};

TEST_F(FrameStreamTest, AFrameLongerThanTheRingStreamsThroughIt) {
  std::vector<std::byte> payload(10 * kCapacity);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(writer_.Send({FrameKind::kPlan, {3, 4}}, payload).ok());
  ASSERT_TRUE(writer_.Send({FrameKind::kReport, {5, 6}}, {}).ok());
  const Frame* frame = nullptr;
  for (int turn = 0; turn < 20 && frame == nullptr; ++turn) {
    frame = *reader_.Next();
    ASSERT_TRUE(writer_.Flush().ok());
  }
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(frame->header.kind, FrameKind::kPlan);
  EXPECT_EQ(frame->header.channel, (ChannelId{3, 4}));
  EXPECT_TRUE(frame->payload == payload);
  frame = *reader_.Next();
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(frame->header.channel, (ChannelId{5, 6}));
  EXPECT_FALSE(writer_.HasBacklog());
}

TEST_F(FrameStreamTest, TheProducerIsRungOnlyWhenItWaitsForSpace) {
  ASSERT_TRUE(writer_.Send({}, std::vector<std::byte>(8)).ok());
  sleeping_ = 1;
  ASSERT_NE(*reader_.Next(), nullptr);
  EXPECT_EQ(doorbell_.times_rung(), 0u);
  sleeping_ = 0;
  ASSERT_TRUE(writer_.Send({}, std::vector<std::byte>(2 * kCapacity)).ok());
  sleeping_ = 1;
  ASSERT_EQ(*reader_.Next(), nullptr);
  EXPECT_EQ(doorbell_.times_rung(), 1u);
}

TEST_F(FrameStreamTest, AnImpossibleLengthIsAnError) {
  WriteRaw({kMaxMessageBytes + 1, 1, 0, 0, 0});
  EXPECT_EQ(reader_.Next().status().code(), StatusCode::kProtocol);
}

TEST_F(FrameStreamTest, AReservedFieldInUseIsAnError) {
  WriteRaw({0, 1, 9, 0, 0});
  EXPECT_EQ(reader_.Next().status().code(), StatusCode::kProtocol);
}

}  // namespace
}  // namespace horoscale
