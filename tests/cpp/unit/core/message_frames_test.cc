#include "core/message_frames.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

std::vector<MessageFrame> OneOfEachType(std::span<const std::byte> payload) {
  using Type = MessageFrame::Type;
  const Envelope envelope{(int64_t{1} << 40) + 3, 2, DataType::kFloat32, payload.size()};
  std::vector<MessageFrame> frames(12);
  for (size_t i = 0; i < frames.size(); ++i) {
    frames[i].type = static_cast<Type>(i);
    if (frames[i].type != Type::kCredit) frames[i].number = 1000 + i;
  }
  frames[0].envelope = frames[1].envelope = frames[6].envelope = envelope;
  frames[0].payload = frames[3].payload = frames[11].payload = payload;
  frames[1].source = {MessageSource::Kind::kStaged, uint64_t{1} << 46, 4096};
  frames[4].bytes = frames[7].bytes = 70'000;
  frames[8].stamp = frames[9].stamp = uint64_t{1} << 50;
  frames[10].use = 3'000'000'000;
  return frames;
}

TEST(MessageFramesTest, EveryTypeSurvivesTheWire) {
  const std::vector<std::byte> payload(12, std::byte{5});
  for (const MessageFrame& frame : OneOfEachType(payload)) {
    const std::vector<std::byte> bytes = Encode(frame);
    const auto read = DecodeMessageFrame(bytes);
    ASSERT_TRUE(read.ok()) << static_cast<int>(frame.type) << read.status().message();
    EXPECT_EQ(read->type, frame.type);
    EXPECT_EQ(read->number, frame.number);
    EXPECT_EQ(read->envelope, frame.envelope);
    EXPECT_EQ(read->source, frame.source);
    EXPECT_EQ(read->bytes, frame.bytes);
    EXPECT_EQ(read->stamp, frame.stamp);
    EXPECT_EQ(read->use, frame.use);
    EXPECT_TRUE(std::equal(read->payload.begin(), read->payload.end(), frame.payload.begin(),
                           frame.payload.end()));
  }
}

TEST(MessageFramesTest, WhatIsCutOrTooLongIsRefused) {
  const std::vector<std::byte> payload(12, std::byte{5});
  for (const MessageFrame& frame : OneOfEachType(payload)) {
    std::vector<std::byte> bytes = Encode(frame);
    const bool is_data = frame.type == MessageFrame::Type::kData;
    const bool is_open = is_data || frame.type == MessageFrame::Type::kWithdrawn;
    const size_t header = bytes.size() - frame.payload.size();
    const size_t least = is_data ? header + 1 : is_open ? header : bytes.size();
    for (size_t size = 0; size < least; ++size) {
      EXPECT_FALSE(DecodeMessageFrame(std::span(bytes).first(size)).ok());
    }
    bytes.push_back(std::byte{0});
    EXPECT_EQ(DecodeMessageFrame(bytes).ok(), is_open);
  }
}

TEST(MessageFramesTest, WhatNoSenderSendsIsRefused) {
  const std::vector<std::byte> large(kMaxEagerBytesBetweenHosts + 1);
  MessageFrame frame;
  frame.envelope.bytes = large.size();
  frame.payload = large;
  EXPECT_FALSE(DecodeMessageFrame(Encode(frame)).ok());
  frame.type = MessageFrame::Type::kOffer;
  EXPECT_TRUE(DecodeMessageFrame(Encode(frame)).ok());
  frame.envelope.dtype = DataType::kInt32;  // a fraction of an element
  EXPECT_FALSE(DecodeMessageFrame(Encode(frame)).ok());
  frame.envelope = {kMaxTag + 1, 0, DataType::kUint8, 1};
  EXPECT_FALSE(DecodeMessageFrame(Encode(frame)).ok());
  const std::vector<std::byte> unknown = {std::byte{1},  std::byte{1}, std::byte{0}, std::byte{0},
                                          std::byte{13}, std::byte{0}, std::byte{0}, std::byte{0}};
  EXPECT_FALSE(DecodeMessageFrame(unknown).ok());
  frame = {};
  frame.type = MessageFrame::Type::kOffer;
  frame.source = {MessageSource::Kind::kStaged, 1, UINT64_MAX};
  EXPECT_FALSE(DecodeMessageFrame(Encode(frame)).ok());
  frame = {};
  frame.type = MessageFrame::Type::kWithdrawn;
  frame.payload = std::span(large).first(kMaxReasonBytes + 1);
  EXPECT_FALSE(DecodeMessageFrame(Encode(frame)).ok());
  frame = {};
  frame.type = MessageFrame::Type::kLaunch;
  frame.stamp = UINT64_MAX;
  EXPECT_FALSE(DecodeMessageFrame(Encode(frame)).ok());
  EXPECT_FALSE(DecodeMessageFrame({}).ok());
}

}  // namespace
}  // namespace horoscale
