// Messages between hosts that are modified, dropped, repeated or reordered on the way: the reader
// accepts neither them nor anything after them.

#include "transport/tcp/message_tags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "platform/unix_socket.h"
#include "transport/tcp/message_reader.h"
#include "transport/tcp/message_writer.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;

constexpr MessageKey kKey = {std::byte{1}, std::byte{2}};
constexpr MessageKey kOtherKey = {std::byte{1}, std::byte{3}};
constexpr size_t kHeaderBytes = sizeof(MessageHeader) + Seal::kTagBytes;

struct Message {
  MessageHeader header;
  std::vector<std::byte> payload;
};

Message Frame(uint32_t bytes) {
  return {{MessageType::kFrame, FrameKind::kReport, 7, 1, bytes, 0, 0, 0, 0, 0},
          std::vector<std::byte>(bytes, std::byte{0x55})};
}

Message Chunk(uint32_t bytes, bool sealed) {
  Message chunk = Frame(bytes);
  chunk.header.type = MessageType::kChunk;
  chunk.header.sealed = sealed ? 1 : 0;
  return chunk;
}

// The bytes that the writer puts on the wire.
std::vector<std::byte> Wire(const std::vector<Message>& messages, const MessageKey& key = kKey) {
  auto [near, far] = UnixPair().TakeValue();
  MessageWriter writer(key);
  uint32_t pending = 0;
  for (const Message& message : messages) {
    if (message.header.type == MessageType::kChunk) {
      writer.AddFromPlace(message.header, message.payload, nullptr, &pending);
    } else {
      writer.Add(message.header, message.payload);
    }
  }
  EXPECT_TRUE(writer.Flush(near).ok());
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(pending, 0u);
  std::vector<std::byte> wire(1 << 16);
  wire.resize(*far.ReceiveSome(wire));
  return wire;
}

class Collector final : public MessageReader::Handler {
 public:
  Result<std::byte*> OnHeader(const MessageHeader& header) override {
    if (header.bytes > 1 << 20) ADD_FAILURE() << "a length that nobody has sent";
    return nullptr;
  }
  Status OnMessage(const MessageHeader& header, std::span<const std::byte> payload) override {
    messages.push_back({header, {payload.begin(), payload.end()}});
    return {};
  }
  std::vector<Message> messages;
};

// The messages that a reader decodes from it, in pieces of `step` bytes.
Status Read(std::span<const std::byte> wire, std::vector<Message>* messages, size_t step = 1000) {
  MessageReader reader(4096, kKey);
  Collector collector;
  Status status;
  while (!wire.empty() && status.ok()) {
    const auto room = reader.Room();
    size_t bytes = 0;
    for (const std::span<std::byte> part : room) {
      const size_t taken = std::min({part.size(), wire.size(), step - bytes});
      std::copy_n(wire.begin(), taken, part.begin());
      wire = wire.subspan(taken);
      bytes += taken;
      if (taken < part.size()) break;
    }
    status = reader.Take(bytes, collector);
  }
  *messages = std::move(collector.messages);
  return status;
}

TEST(MessageTagsTest, MessagesArriveInPiecesOfAnySize) {
  const std::vector<Message> sent = {Frame(100), Frame(0), Chunk(50, false), Chunk(70, true),
                                     Chunk(0, true)};
  const std::vector<std::byte> wire = Wire(sent);
  EXPECT_EQ(wire.size(), 5 * kHeaderBytes + 100 + 16 + 50 + 70 + 16);
  for (size_t step = 1; step < 100; ++step) {
    std::vector<Message> got;
    ASSERT_TRUE(Read(wire, &got, step).ok()) << step;
    ASSERT_EQ(got.size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(got[i].payload, sent[i].payload);
  }
}

TEST(MessageTagsTest, AnyBitOfAFrameAndOfASealedChunkCounts) {
  for (const Message& message : {Frame(24), Chunk(24, true)}) {
    const std::vector<std::byte> wire = Wire({Frame(3), message});
    const size_t before = kHeaderBytes + 3 + 16;
    for (size_t bit = 8 * before; bit < 8 * wire.size(); ++bit) {
      std::vector<std::byte> changed = wire;
      changed[bit / 8] ^= std::byte{1} << (bit % 8);
      std::vector<Message> got;
      const Status status = Read(changed, &got);
      EXPECT_EQ(status.code(), StatusCode::kProtocol) << bit;
      EXPECT_THAT(status.message(), HasSubstr("failed authentication"));
      EXPECT_EQ(got.size(), 1u) << "what came before it";
    }
  }
}

TEST(MessageTagsTest, OfOtherChunksEverythingButTheValues) {
  const std::vector<std::byte> wire = Wire({Chunk(24, false)});
  ASSERT_EQ(wire.size(), kHeaderBytes + 24);
  for (size_t byte = 0; byte < wire.size(); ++byte) {
    std::vector<std::byte> changed = wire;
    changed[byte] ^= std::byte{1};
    std::vector<Message> got;
    EXPECT_EQ(Read(changed, &got).ok(), byte >= kHeaderBytes) << byte;
  }
}

TEST(MessageTagsTest, ReplayReorderOmissionAndOtherConnectionsAreFoundOut) {
  const std::vector<std::byte> wire = Wire({Frame(10), Frame(10), Frame(10)});
  const size_t third = wire.size() / 3;
  const auto part = [&](size_t i) { return std::span(wire).subspan(i * third, third); };
  const auto read = [&](std::vector<size_t> order, size_t expected) {
    std::vector<std::byte> bytes;
    for (const size_t i : order) bytes.insert(bytes.end(), part(i).begin(), part(i).end());
    std::vector<Message> got;
    const Status status = Read(bytes, &got);
    EXPECT_EQ(got.size(), expected);
    return status.code();
  };
  EXPECT_EQ(read({0, 1, 2}, 3), StatusCode::kOk);
  EXPECT_EQ(read({0, 0}, 1), StatusCode::kProtocol);
  EXPECT_EQ(read({0, 2}, 1), StatusCode::kProtocol);
  EXPECT_EQ(read({1, 0}, 0), StatusCode::kProtocol);
  EXPECT_EQ(read({0, 1, 1}, 2), StatusCode::kProtocol);
  std::vector<Message> got;
  EXPECT_EQ(Read(Wire({Frame(10)}, kOtherKey), &got).code(), StatusCode::kProtocol);
  EXPECT_TRUE(got.empty());
}

TEST(MessageTagsTest, WithoutAKeyThereAreNone) {
  auto [near, far] = UnixPair().TakeValue();
  MessageWriter writer;
  writer.Add(Frame(10).header, Frame(10).payload);
  ASSERT_TRUE(writer.Flush(near).ok());
  std::vector<std::byte> wire(1000);
  EXPECT_EQ(*far.ReceiveSome(wire), sizeof(MessageHeader) + 10);
}

}  // namespace
}  // namespace horoscale
