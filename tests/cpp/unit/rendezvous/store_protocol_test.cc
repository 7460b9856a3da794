#include "rendezvous/store_protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

namespace horoscale {
namespace {

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The body of a frame, after a check of its header.
std::span<const std::byte> Body(const std::vector<std::byte>& frame) {
  const Result<size_t> bytes = DecodeStoreHeader(std::span(frame).first<kStoreHeaderBytes>());
  EXPECT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, frame.size() - kStoreHeaderBytes);
  return std::span(frame).subspan(kStoreHeaderBytes);
}

TEST(StoreProtocolTest, SetComesBack) {
  const std::string value(kStoreMaxValueBytes, 'v');
  const std::string key(kStoreMaxKeyBytes, 'k');
  const std::vector<std::byte> frame = EncodeSet(key, AsBytes(value));
  const Result<StoreRequest> request = DecodeStoreRequest(Body(frame));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->verb, StoreVerb::kSet);
  EXPECT_EQ(request->key, key);
  EXPECT_TRUE(std::ranges::equal(request->value, AsBytes(value)));
}

TEST(StoreProtocolTest, GetComesBack) {
  const std::vector<std::byte> frame = EncodeGet("key", 0xfedcba98);
  const Result<StoreRequest> request = DecodeStoreRequest(Body(frame));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->verb, StoreVerb::kGet);
  EXPECT_EQ(request->key, "key");
  EXPECT_EQ(request->wait_ms, 0xfedcba98);
}

TEST(StoreProtocolTest, GatherComesBack) {
  const GatherRequest gather = {"key", 3, 7, AsBytes("value"), "label", "unless", "will"};
  const std::vector<std::byte> frame = EncodeGather(gather, 0xfedcba98);
  const Result<StoreRequest> request = DecodeStoreRequest(Body(frame));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->verb, StoreVerb::kGather);
  EXPECT_EQ(request->wait_ms, 0xfedcba98);
  EXPECT_EQ(request->gather.key, "key");
  EXPECT_EQ(request->gather.place, 3);
  EXPECT_EQ(request->gather.count, 7);
  EXPECT_TRUE(std::ranges::equal(request->gather.value, AsBytes("value")));
  EXPECT_EQ(request->gather.label, "label");
  EXPECT_EQ(request->gather.unless, "unless");
  EXPECT_EQ(request->gather.will, "will");
  for (size_t bytes = 0; bytes < Body(frame).size() - 5; ++bytes) {
    EXPECT_FALSE(DecodeStoreRequest(Body(frame).first(bytes)).ok()) << bytes;
  }
}

// After an overlong text the remaining bytes must not be parsed as the other texts.
TEST(StoreProtocolTest, GatherWithATextThatIsTooLongIsRefused) {
  const GatherRequest gather = {"key", 3, 7, AsBytes("value"), "label", "unless", "will"};
  const std::vector<std::byte> frame = EncodeGather(gather, 0);
  size_t length = kStoreHeaderBytes + 1 + 12;
  for (const std::string_view text : {gather.key, gather.label, gather.unless, gather.will}) {
    std::vector<std::byte> changed = frame;
    changed[length + 1] = std::byte{1};
    EXPECT_FALSE(DecodeStoreRequest(std::span(changed).subspan(kStoreHeaderBytes)).ok()) << text;
    length += 4 + text.size();
  }
}

TEST(StoreProtocolTest, GatherOfAPlaceThatCannotBeIsRefused) {
  for (const auto& [place, count] :
       {std::pair{3u, 3u}, std::pair{0u, 0u}, std::pair{0u, kStoreMaxParties + 1}}) {
    const std::vector<std::byte> frame = EncodeGather({"key", place, count, {}}, 0);
    EXPECT_EQ(DecodeStoreRequest(Body(frame)).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(StoreProtocolTest, WhatWasGatheredComesBack) {
  Gathered gathered;
  gathered.round = 0x123456789abcdef0;
  gathered.values[1] = {std::byte{7}, std::byte{8}};
  gathered.values[4] = {};
  const std::vector<std::byte> payload = EncodeGathered(gathered);
  const auto decoded = DecodeGathered(payload, 5);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->round, gathered.round);
  EXPECT_EQ(decoded->values, gathered.values);
  EXPECT_FALSE(DecodeGathered(payload, 4).ok()) << "there is no place 4";
  for (size_t bytes = 0; bytes < payload.size(); ++bytes) {
    EXPECT_FALSE(DecodeGathered(std::span(payload).first(bytes), 5).ok()) << bytes;
  }
  const std::vector<int> places = {0, 3};
  EXPECT_EQ(*DecodePlaces(EncodePlaces(places), 4), places);
  EXPECT_FALSE(DecodePlaces(EncodePlaces(places), 3).ok());
}

TEST(StoreProtocolTest, ReplyComesBack) {
  const std::vector<std::byte> frame = EncodeReply(StatusCode::kTimeout, AsBytes("late"));
  const Result<StoreReply> reply = DecodeStoreReply(Body(frame));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->code, StatusCode::kTimeout);
  EXPECT_TRUE(std::ranges::equal(reply->payload, AsBytes("late")));
}

TEST(StoreProtocolTest, TheBytesAreFixed) {
  const std::vector<std::byte> frame = EncodeSet("ab", AsBytes("c"));
  const std::array<unsigned char, 12> expected = {8, 0, 0, 0, 1, 2, 0, 0, 0, 'a', 'b', 'c'};
  EXPECT_TRUE(std::ranges::equal(frame, std::as_bytes(std::span(expected))));
}

TEST(StoreProtocolTest, LengthsBeyondTheBoundAreRefused) {
  const auto header = [](uint32_t value) {
    std::array<std::byte, kStoreHeaderBytes> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
    return DecodeStoreHeader(bytes);
  };
  EXPECT_TRUE(header(1).ok());
  EXPECT_TRUE(header(kStoreMaxBodyBytes).ok());
  for (const uint32_t bytes : {0u, uint32_t{kStoreMaxBodyBytes} + 1, 0xffffffffu}) {
    EXPECT_EQ(header(bytes).status().code(), StatusCode::kProtocol);
  }
}

TEST(StoreProtocolTest, EveryTruncationOfASetWithinItsKeyIsRefused) {
  const std::vector<std::byte> frame = EncodeSet("key", {});
  const std::span<const std::byte> body = Body(frame);
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_FALSE(DecodeStoreRequest(body.first(bytes)).ok()) << bytes;
  }
}

TEST(StoreProtocolTest, WhatCannotBeIsRefused) {
  const auto request = [](std::vector<unsigned char> body) {
    return DecodeStoreRequest(std::as_bytes(std::span(body))).status().code();
  };
  EXPECT_EQ(request({}), StatusCode::kProtocol);
  EXPECT_EQ(request({3, 0}), StatusCode::kProtocol);                            // a reply
  EXPECT_EQ(request({200}), StatusCode::kProtocol);                             // no such verb
  EXPECT_EQ(request({1, 0xff, 0xff, 0xff, 0xff, 'a'}), StatusCode::kProtocol);  // key too long
  EXPECT_EQ(request({1, 0, 0, 0, 0, 'a'}), StatusCode::kInvalidArgument);       // no key
  EXPECT_EQ(request({2, 1, 0, 0, 0}), StatusCode::kInvalidArgument);            // no key
  std::vector<unsigned char> long_key(5 + kStoreMaxKeyBytes + 1, 'k');
  long_key[0] = 2;
  EXPECT_EQ(request(long_key), StatusCode::kInvalidArgument);

  const auto reply = [](std::vector<unsigned char> body) {
    return DecodeStoreReply(std::as_bytes(std::span(body))).ok();
  };
  EXPECT_TRUE(reply({3, 0}));
  EXPECT_FALSE(reply({3}));
  EXPECT_FALSE(reply({1, 0}));
  EXPECT_FALSE(reply({3, 13}));
}

}  // namespace
}  // namespace horoscale
