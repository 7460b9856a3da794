// A connection with authenticated bytes: any modification on the way is detected.

#include "rendezvous/sealed_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "platform/unix_socket.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;

constexpr MessageKeys kKeys = {.send = {std::byte{1}}, .receive = {std::byte{2}}};
constexpr MessageKeys kPeersKeys = {.send = kKeys.receive, .receive = kKeys.send};

Deadline Soon() { return Deadline::After(20); }

std::vector<std::byte> Bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

ByteStream WithRecords(ByteStream stream, const MessageKeys& keys) {
  stream.set_message_keys(keys);
  UseSealedRecords(stream);
  return stream;
}

// The bytes on the wire for some messages.
std::vector<std::byte> Wire(const std::vector<std::vector<std::byte>>& messages,
                            const MessageKeys& keys = kKeys) {
  auto [near, far] = UnixPair().TakeValue();
  ByteStream sender = WithRecords(std::move(near), keys);
  std::vector<std::byte> wire;
  for (const std::vector<std::byte>& message : messages) {
    EXPECT_TRUE(sender.SendAll(message, Soon()).ok());
    std::vector<std::byte> part(4 + 16 + message.size() + 16);
    EXPECT_TRUE(far.ReceiveAll(part, Soon()).ok());
    wire.insert(wire.end(), part.begin(), part.end());
  }
  return wire;
}

// A peer's read of `wanted` bytes from the wire.
Status Read(std::span<const std::byte> wire, size_t wanted, std::vector<std::byte>* result) {
  auto [near, far] = UnixPair().TakeValue();
  EXPECT_TRUE(far.SendAll(wire, Soon()).ok());
  {
    const ByteStream closed = std::move(far);
  }
  ByteStream receiver = WithRecords(std::move(near), kPeersKeys);
  result->resize(wanted);
  return receiver.ReceiveAll(*result, Soon());
}

TEST(SealedRecordsTest, BytesArriveInPiecesOfAnySize) {
  auto [near, far] = UnixPair().TakeValue();
  ByteStream sender = WithRecords(std::move(near), kKeys);
  ByteStream receiver = WithRecords(std::move(far), kPeersKeys);
  const std::vector<std::byte> sent = Bytes(1000);
  ASSERT_TRUE(sender.SendAll(sent, Soon()).ok());
  std::vector<std::byte> got(sent.size());
  ASSERT_TRUE(receiver.ReceiveAll(std::span(got).first(1), Soon()).ok());
  EXPECT_TRUE(receiver.HasPending()) << "the socket is empty";
  ASSERT_TRUE(receiver.ReceiveAll(std::span(got).subspan(1), Soon()).ok());
  EXPECT_FALSE(receiver.HasPending());
  EXPECT_EQ(got, sent);
}

TEST(SealedRecordsTest, WhatTheSocketDoesNotTakeIsOfferedAgain) {
  auto [near, far] = UnixPair().TakeValue();
  ByteStream sender = WithRecords(std::move(near), kKeys);
  ByteStream receiver = WithRecords(std::move(far), kPeersKeys);
  const std::vector<std::byte> sent = Bytes(3 << 20);
  std::vector<std::byte> got;
  std::span<const std::byte> rest = sent;
  std::vector<std::byte> buffer(10'000);
  int refused = 0;
  while (got.size() < sent.size()) {
    if (!rest.empty()) {
      const Result<size_t> taken = sender.SendSome(rest);
      ASSERT_TRUE(taken.ok());
      rest = rest.subspan(*taken);
      if (*taken > 0) continue;
      ++refused;
    }
    const Result<size_t> arrived = receiver.ReceiveSome(buffer);
    ASSERT_TRUE(arrived.ok());
    got.insert(got.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(*arrived));
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(got, sent);
}

TEST(SealedRecordsTest, AnyBitThatIsFlippedIsFoundOut) {
  const std::vector<std::byte> message = Bytes(21);
  const std::vector<std::byte> wire = Wire({message});
  std::vector<std::byte> got;
  ASSERT_TRUE(Read(wire, message.size(), &got).ok());
  ASSERT_EQ(got, message);
  for (size_t bit = 0; bit < 8 * wire.size(); ++bit) {
    std::vector<std::byte> changed = wire;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    const Status status = Read(changed, message.size(), &got);
    EXPECT_EQ(status.code(), StatusCode::kProtocol) << bit;
    EXPECT_THAT(status.message(), HasSubstr("failed authentication")) << bit;
  }
}

TEST(SealedRecordsTest, ReplayReorderOmissionAndReflectionAreFoundOut) {
  const std::vector<std::byte> one = Bytes(20);
  const std::vector<std::byte> wire = Wire({one, one});
  const size_t half = wire.size() / 2;
  const auto first = std::span(wire).first(half);
  const auto second = std::span(wire).subspan(half);
  const auto joined = [](std::span<const std::byte> a, std::span<const std::byte> b) {
    std::vector<std::byte> both(a.begin(), a.end());
    both.insert(both.end(), b.begin(), b.end());
    return both;
  };
  std::vector<std::byte> got;
  ASSERT_TRUE(Read(wire, 40, &got).ok());
  EXPECT_EQ(Read(joined(first, first), 40, &got).code(), StatusCode::kProtocol);
  EXPECT_EQ(Read(joined(second, first), 40, &got).code(), StatusCode::kProtocol);
  EXPECT_EQ(Read(second, 20, &got).code(), StatusCode::kProtocol);
  EXPECT_EQ(Read(Wire({one}, kPeersKeys), 20, &got).code(), StatusCode::kProtocol);
  EXPECT_EQ(Read(first, 40, &got).code(), StatusCode::kSystem) << "the end is told as such";
  EXPECT_EQ(Read(std::span(wire).first(wire.size() - 1), 40, &got).code(), StatusCode::kSystem);
}

}  // namespace
}  // namespace horoscale
