// What ranks of other hosts, and strangers, may send over TCP: it is accepted, or refused with an
// error that names the rank, and does no harm.

#include "transport/tcp/tcp_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/transport_world.h"
#include "platform/unix_socket.h"

namespace horoscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kPatience = 20;

// Rank 0, whose only peer is the test, which sends raw bytes.
class RawPeer : public ::testing::Test {
 protected:
  void SetUp() override {
    TcpMesh mesh;
    for (std::unique_ptr<ByteStream>* far : {&control_, &data_, &second_data_}) {
      auto [near, other] = UnixPair().TakeValue();
      mesh.links[1].push_back(std::move(near));
      *far = std::make_unique<ByteStream>(std::move(other));
    }
    transport_ = TcpTransport::Create(0, std::move(mesh), 30).TakeValue();
  }

  static void Send(ByteStream& stream, const MessageHeader& header,
                   std::span<const std::byte> payload = {}) {
    const Deadline deadline = Deadline::After(kPatience);
    ASSERT_TRUE(stream.SendAll(std::as_bytes(std::span(&header, 1)), deadline).ok());
    ASSERT_TRUE(stream.SendAll(payload, deadline).ok());
  }

  void PollUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(kPatience);
    while (!condition() && !deadline.Passed()) transport_->Poll(inbox_);
    ASSERT_TRUE(condition());
  }

  // The released rounds that the peer has been sent since the last call: all below this one; 0:
  // none.
  uint64_t Released() {
    MessageHeader told{};
    size_t bytes = 0;
    while (told.type != MessageType::kReleased || bytes < sizeof(told)) {
      if (bytes == sizeof(told)) bytes = 0;
      const auto got =
          control_->ReceiveSome(std::as_writable_bytes(std::span(&told, 1)).subspan(bytes));
      if (!got.ok() || *got == 0) return 0;
      bytes += *got;
    }
    return told.round;
  }

  // Reads `bytes` bytes from the stream while the transport sends.
  void Read(ByteStream& stream, std::span<std::byte> rest) {
    const Deadline deadline = Deadline::After(kPatience);
    while (!rest.empty()) {
      ASSERT_FALSE(deadline.Passed());
      const Result<size_t> got = stream.ReceiveSome(rest.first(std::min<size_t>(rest.size(), 999)));
      ASSERT_TRUE(got.ok());
      rest = rest.subspan(*got);
      transport_->Poll(inbox_);
    }
  }

  // The reason for the rank's loss.
  std::string Loss() {
    PollUntil([this] { return !inbox_.lost.empty(); });
    return inbox_.lost.empty() ? "" : inbox_.lost.front().second.message();
  }

  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<ByteStream> control_, data_, second_data_;
  Inbox inbox_;
};

MessageHeader Header(MessageType type, uint32_t bytes, FrameKind kind = FrameKind::kReport) {
  return {type, kind, 7, 1, bytes, 0, 0, 0, 0, 0};
}

TEST_F(RawPeer, AFrameInPiecesArrivesWhole) {
  const std::vector<std::byte> payload(1000, std::byte{7});
  const MessageHeader header = Header(MessageType::kFrame, 1000);
  std::vector<std::byte> bytes(sizeof(header) + payload.size(), std::byte{7});
  std::memcpy(bytes.data(), &header, sizeof(header));
  for (const std::byte& one : bytes) {
    ASSERT_TRUE(control_->SendAll({&one, 1}, Deadline::After(kPatience)).ok());
    transport_->Poll(inbox_);
  }
  PollUntil([this] { return inbox_.frames[1].size() == 1; });
  EXPECT_TRUE(inbox_.frames[1][0].payload == payload);
}

// An attacker on the path: the error names the rank and says what happened.
TEST(TcpTransport, AMessageThatWasChangedOnTheWayEndsTheLink) {
  const MessageKeys keys = {.send = {std::byte{1}}, .receive = {std::byte{2}}};
  for (const size_t changed : {size_t{0}, sizeof(MessageHeader) + Seal::kTagBytes + 5}) {
    TcpMesh mesh;
    std::vector<ByteStream> far;
    for (int i = 0; i < 2; ++i) {
      auto [near, other] = UnixPair().TakeValue();
      near.set_message_keys(keys);
      mesh.links[1].push_back(std::move(near));
      far.push_back(std::move(other));
    }
    auto transport = TcpTransport::Create(0, std::move(mesh), 30).TakeValue();
    auto [near, wire] = UnixPair().TakeValue();
    MessageWriter writer(keys.receive);
    writer.Add(Header(MessageType::kFrame, 10), std::vector<std::byte>(10));
    ASSERT_TRUE(writer.Flush(near).ok());
    std::vector<std::byte> bytes(sizeof(MessageHeader) + 10 + 2 * Seal::kTagBytes);
    ASSERT_TRUE(wire.ReceiveAll(bytes, Deadline::After(kPatience)).ok());
    bytes[changed] ^= std::byte{1};
    ASSERT_TRUE(far[0].SendAll(bytes, Deadline::After(kPatience)).ok());
    Inbox inbox;
    const Deadline deadline = Deadline::After(kPatience);
    while (inbox.lost.empty() && !deadline.Passed()) transport->Poll(inbox);
    ASSERT_EQ(inbox.lost.size(), 1u);
    EXPECT_TRUE(inbox.frames[1].empty());
    EXPECT_EQ(inbox.lost[0].first, 1);
    EXPECT_THAT(inbox.lost[0].second.detail().ranks, ElementsAre(1));
    EXPECT_THAT(inbox.lost[0].second.message(), HasSubstr("failed authentication"));
  }
}

TEST_F(RawPeer, ALengthBeyondAllBoundsEndsTheLink) {
  Send(*control_, Header(MessageType::kFrame, 0xffffffff));
  EXPECT_THAT(Loss(), HasSubstr("message of invalid size: 4294967295 bytes"));
}

TEST_F(RawPeer, UnknownMessagesEndTheLink) {
  Send(*control_, Header(static_cast<MessageType>(99), 0));
  EXPECT_THAT(Loss(), HasSubstr("unknown type 99"));
}

TEST_F(RawPeer, AFrameOnTheDataStreamEndsTheLink) {
  Send(*data_, Header(MessageType::kFrame, 0));
  EXPECT_THAT(Loss(), HasSubstr("wrong stream"));
}

TEST_F(RawPeer, AChunkForABankThatIsOccupiedEndsTheLink) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  MessageHeader header = Header(MessageType::kChunk, 16);
  Send(*data_, header, std::vector<std::byte>(16));
  PollUntil([&] { return exchange->Peek(0, 1) != nullptr; });
  header.round = MessageExchange::kBanks;  // the first one has not been released
  Send(*data_, header, std::vector<std::byte>(16));
  EXPECT_THAT(Loss(), HasSubstr("no bank"));
}

TEST_F(RawPeer, AMemberThatIsSentNothingHoldsUpNobody) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  Send(*control_, Header(MessageType::kOpened, 0));
  PollUntil([&] { return exchange->Reserve(0) != nullptr; });
  const Exchange::Extent nothing[2] = {};
  for (uint64_t round = 0; round < 20; ++round) {
    ASSERT_NE(exchange->Reserve(round), nullptr) << "round " << round;
    exchange->Publish(round, 16, nothing);
    exchange->Release(round);
  }
  EXPECT_EQ(transport_->counters().network_bytes_sent, 0u);
}

TEST_F(RawPeer, AChunkBeyondItsBankEndsTheLink) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  MessageHeader header = Header(MessageType::kChunk, 16);
  header.offset = MessageExchange::kChunkBytes - 8;
  Send(*data_, header, std::vector<std::byte>(16));
  EXPECT_THAT(Loss(), HasSubstr("no bank"));
}

TEST_F(RawPeer, SetsThatAreNotOpenHereAreRememberedUpToABound) {
  MessageHeader header = Header(MessageType::kOpened, 0);
  for (uint32_t twice = 0; twice < 2; ++twice) {  // repeating it costs nothing
    for (header.process_set = 1; header.process_set <= 4096; ++header.process_set) {
      Send(*control_, header);
      transport_->Poll(inbox_);
    }
  }
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();  // frees one place
  Send(*control_, header);
  Send(*control_, Header(MessageType::kFrame, 0));
  PollUntil([this] { return inbox_.frames[1].size() == 1; });
  EXPECT_NE(exchange->Reserve(0), nullptr) << "it was remembered";
  ++header.process_set;
  Send(*control_, header);
  EXPECT_THAT(Loss(), HasSubstr("rank 1 has opened more than 4096 process sets"));
}

TEST_F(RawPeer, ASetThatARankOutsideItHasOpenedIsNotOpened) {
  Send(*control_, Header(MessageType::kOpened, 0));
  Send(*control_, Header(MessageType::kFrame, 0));
  PollUntil([this] { return inbox_.frames[1].size() == 1; });
  const std::vector<int> ranks = {0, 2};
  const Status status = transport_->Open({7, 1}, ranks).status();
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 has opened process set 7"));
}

TEST_F(RawPeer, AChunkOfAClosedSetIsReadAndForgotten) {
  Send(*data_, Header(MessageType::kChunk, 100'000), std::vector<std::byte>(100'000));
  Send(*control_, Header(MessageType::kFrame, 0));
  PollUntil([this] { return inbox_.frames[1].size() == 1; });
  EXPECT_TRUE(inbox_.lost.empty());
}

TEST_F(RawPeer, AGoodbyeComesBehindTheDataSentBeforeIt) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  Send(*control_, Header(MessageType::kFrame, 0, FrameKind::kGoodbye));
  control_.reset();
  for (int i = 0; i < 10; ++i) transport_->Poll(inbox_);
  EXPECT_TRUE(inbox_.lost.empty()) << "its data stream is open";
  Send(*data_, Header(MessageType::kChunk, 16), std::vector<std::byte>(16));
  data_.reset();
  for (int i = 0; i < 10; ++i) transport_->Poll(inbox_);
  EXPECT_TRUE(inbox_.lost.empty()) << "its other data stream is open";
  second_data_.reset();
  EXPECT_THAT(Loss(), HasSubstr("closed its link"));
  EXPECT_NE(exchange->Peek(0, 1), nullptr);
  ASSERT_EQ(inbox_.frames[1].size(), 1u);
  EXPECT_EQ(inbox_.frames[1][0].header.kind, FrameKind::kGoodbye);
}

// A rank that leaves closes its sockets while others still send to it.
TEST_F(RawPeer, WhatCameBeforeThePeerLeftIsReadAlthoughSendingFails) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  Send(*data_, Header(MessageType::kChunk, 16), std::vector<std::byte>(16));
  Send(*control_, Header(MessageType::kFrame, 0, FrameKind::kGoodbye));
  second_data_.reset();
  data_.reset();
  control_.reset();
  transport_->Send(1, {FrameKind::kReport, {7, 1}}, {});
  EXPECT_THAT(Loss(), HasSubstr("closed its link"));
  EXPECT_NE(exchange->Peek(0, 1), nullptr);
  ASSERT_EQ(inbox_.frames[1].size(), 1u);
  EXPECT_EQ(inbox_.frames[1][0].header.kind, FrameKind::kGoodbye);
}

TEST_F(RawPeer, ADataStreamThatEndsAloneEndsTheLink) {
  second_data_.reset();
  EXPECT_THAT(Loss(), HasSubstr("data stream 2 of 2 was closed, but not the others"));
}

// The end of the data streams is lost in the network.
TEST_F(RawPeer, AControlStreamThatEndsAloneEndsTheLinkOfALeaver) {
  Send(*control_, Header(MessageType::kFrame, 0, FrameKind::kGoodbye));
  control_.reset();
  EXPECT_THAT(Loss(), HasSubstr("closed its link"));
}

TEST_F(RawPeer, ChunksOfOtherStreamsMayOvertake) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  MessageHeader header = Header(MessageType::kChunk, 16);
  header.round = 1;
  Send(*second_data_, header, std::vector<std::byte>(16, std::byte{1}));
  PollUntil([&] { return exchange->Peek(1, 1) != nullptr; });
  EXPECT_EQ(exchange->Peek(0, 1), nullptr);
  header.round = 0;
  Send(*data_, header, std::vector<std::byte>(16, std::byte{2}));
  PollUntil([&] { return exchange->Peek(0, 1) != nullptr; });
  EXPECT_EQ(exchange->Peek(0, 1)[15], std::byte{2});
  EXPECT_EQ(exchange->Peek(1, 1)[15], std::byte{1});
}

TEST_F(RawPeer, AChunkIsThereWhenAllOfItsPartsAre) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  MessageHeader header = Header(MessageType::kChunk, 16);
  header.others = 1;
  header.part = 1;
  header.offset = 16;
  Send(*second_data_, header, std::vector<std::byte>(16, std::byte{2}));
  MessageHeader next = Header(MessageType::kChunk, 16);
  next.round = 1;
  Send(*second_data_, next, std::vector<std::byte>(16));
  PollUntil([&] { return exchange->Peek(1, 1) != nullptr; });
  EXPECT_EQ(exchange->Peek(0, 1), nullptr);
  header.part = 0;
  header.offset = 0;
  Send(*data_, header, std::vector<std::byte>(16, std::byte{1}));
  PollUntil([&] { return exchange->Peek(0, 1) != nullptr; });
  EXPECT_EQ(exchange->Peek(0, 1)[15], std::byte{1});
  EXPECT_EQ(exchange->Peek(0, 1)[31], std::byte{2});
}

TEST_F(RawPeer, MorePartsThanAnnouncedEndTheLink) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  MessageHeader header = Header(MessageType::kChunk, 16);
  header.others = 1;
  for (int i = 0; i < 3; ++i) Send(*data_, header, std::vector<std::byte>(16));
  EXPECT_THAT(Loss(), HasSubstr("no bank"));
}

TEST_F(RawPeer, AChunkOfTooManyPartsEndsTheLink) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  MessageHeader header = Header(MessageType::kChunk, 16);
  header.others = MessageExchange::kMaxParts;
  Send(*data_, header, std::vector<std::byte>(16));
  EXPECT_THAT(Loss(), HasSubstr("no bank"));
}

// A member that is not in an operation releases its rounds at once. The sender must not count that
// as room while part of a chunk is still being sent.
TEST_F(RawPeer, ABankIsNotFreeBeforeAllPartsAreThere) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  exchange->Release(9);
  MessageHeader header = Header(MessageType::kChunk, 16);
  header.others = 1;
  Send(*data_, header, std::vector<std::byte>(16));
  MessageHeader next = Header(MessageType::kChunk, 16);
  next.round = 1;
  Send(*data_, next, std::vector<std::byte>(16));
  PollUntil([&] { return exchange->Peek(1, 1) != nullptr; });
  EXPECT_EQ(Released(), 0u);
  header.part = 1;
  header.offset = 16;
  Send(*second_data_, header, std::vector<std::byte>(16));
  PollUntil([&] { return exchange->Peek(0, 1) != nullptr; });
  EXPECT_EQ(Released(), 2u);
}

// A chunk in pieces of all sizes; the last piece also contains the beginning of the next chunk.
TEST_F(RawPeer, ChunksInPiecesArriveWhole) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  constexpr uint32_t kBytes = 10'000;
  std::vector<std::byte> stream;
  for (uint64_t round = 0; round < MessageExchange::kBanks; ++round) {
    MessageHeader header = Header(MessageType::kChunk, kBytes);
    header.round = round;
    const auto bytes = std::as_bytes(std::span(&header, 1));
    stream.insert(stream.end(), bytes.begin(), bytes.end());
    for (uint32_t i = 0; i < kBytes; ++i) stream.push_back(static_cast<std::byte>(round + i % 7));
  }
  size_t piece = 1;
  for (std::span<const std::byte> rest(stream); !rest.empty(); piece = piece * 7 % 4999) {
    const size_t bytes = std::min(piece, rest.size());
    ASSERT_TRUE(data_->SendAll(rest.first(bytes), Deadline::After(kPatience)).ok());
    rest = rest.subspan(bytes);
    transport_->Poll(inbox_);
  }
  for (uint64_t round = 0; round < MessageExchange::kBanks; ++round) {
    PollUntil([&] { return exchange->Peek(round, 1) != nullptr; });
    for (uint32_t i = 0; i < kBytes; ++i) {
      ASSERT_EQ(exchange->Peek(round, 1)[i], static_cast<std::byte>(round + i % 7)) << i;
    }
  }
}

// A bank must not receive an older round after a newer one.
TEST_F(RawPeer, AnOlderChunkForABankEndsTheLink) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  MessageHeader header = Header(MessageType::kChunk, 16);
  header.round = MessageExchange::kBanks;
  exchange->Release(header.round);
  Send(*data_, header, std::vector<std::byte>(16));
  header.round = 0;
  Send(*second_data_, header, std::vector<std::byte>(16));
  EXPECT_THAT(Loss(), HasSubstr("no bank"));
}

// The receiver reads nothing for a while. What is sent waits, stays in order, and arrives in place.
TEST_F(RawPeer, WhatASocketDoesNotTakeIsSentLater) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  Send(*control_, Header(MessageType::kOpened, 0));
  PollUntil([&] { return exchange->Reserve(0) != nullptr; });
  for (uint64_t round = 0; round < MessageExchange::kBanks; ++round) {
    std::byte* const chunk = exchange->Reserve(round);
    std::memset(chunk, static_cast<int>(round + 1), MessageExchange::kChunkBytes);
    exchange->Publish(round, MessageExchange::kChunkBytes, {});
  }
  EXPECT_TRUE(transport_->HasUnsent());
  for (uint64_t round = 0; round < MessageExchange::kBanks; ++round) {
    for (const uint16_t part : {0, 1}) {
      ByteStream& stream = *(part == 0 ? data_ : second_data_);
      MessageHeader header;
      std::vector<std::byte> chunk(MessageExchange::kChunkBytes / 2);
      Read(stream, std::as_writable_bytes(std::span(&header, 1)));
      Read(stream, chunk);
      EXPECT_EQ(header.round, round);
      EXPECT_EQ(header.part, part);
      EXPECT_EQ(header.others, 1);
      EXPECT_EQ(header.offset, part * MessageExchange::kChunkBytes / 2);
      EXPECT_EQ(chunk, std::vector<std::byte>(chunk.size(), static_cast<std::byte>(round + 1)));
    }
  }
  EXPECT_FALSE(transport_->HasUnsent());
}

// The caller's memory is in use until the socket has accepted it. A member that gives up releases
// it at once, but the peer still receives the old content.
TEST_F(RawPeer, AChunkInPlaceIsSentFromACopyOnceItIsWithdrawn) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  const std::vector<Exchange::Extent> extents = {{}, {0, MessageExchange::kChunkBytes}};
  std::vector<std::vector<std::byte>> tensors;
  const auto publish = [&](uint64_t round) {
    const std::byte value{static_cast<uint8_t>(round + 1)};
    tensors.emplace_back(MessageExchange::kChunkBytes, value);
    ASSERT_TRUE(
        exchange->PublishInPlace(round, tensors[round].data(), tensors[round].size(), extents));
  };
  publish(0);  // waits for the peer, which has not opened the set
  EXPECT_FALSE(exchange->HasLeft(0));
  exchange->Withdraw();
  EXPECT_TRUE(exchange->HasLeft(0));
  tensors[0].assign(tensors[0].size(), std::byte{0xdd});
  Send(*control_, Header(MessageType::kOpened, 0));
  PollUntil([&] { return exchange->Reserve(1) != nullptr; });
  publish(1);
  publish(2);  // more than a socket takes
  EXPECT_FALSE(exchange->HasLeft(2));
  exchange->Withdraw();
  for (std::vector<std::byte>& tensor : tensors) tensor.assign(tensor.size(), std::byte{0xdd});
  publish(3);
  for (uint64_t round = 0; round < tensors.size(); ++round) {
    for (ByteStream* stream : {data_.get(), second_data_.get()}) {
      MessageHeader header;
      std::vector<std::byte> chunk(MessageExchange::kChunkBytes / 2);
      Read(*stream, std::as_writable_bytes(std::span(&header, 1)));
      Read(*stream, chunk);
      EXPECT_EQ(header.round, round);
      EXPECT_EQ(chunk, std::vector<std::byte>(chunk.size(), static_cast<std::byte>(round + 1)));
    }
  }
  EXPECT_TRUE(exchange->HasLeft(3));
}

// Each notice costs both sides a system call, and there are more banks.
TEST_F(RawPeer, OneReleasedRoundIsToldWithTheNextOrWhenThereIsNone) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  MessageHeader header = Header(MessageType::kChunk, 16);
  for (header.round = 0; header.round < 3; ++header.round) {
    Send(*data_, header, std::vector<std::byte>(16));
    PollUntil([&] { return exchange->Peek(header.round, 1) != nullptr; });
  }
  exchange->Release(0);
  EXPECT_EQ(Released(), 0u);
  exchange->Release(1);
  EXPECT_EQ(Released(), 2u);
  exchange->Release(2);
  EXPECT_EQ(Released(), 0u);
  for (int poll = 0; poll < 3; ++poll) transport_->Poll(inbox_);
  EXPECT_EQ(Released(), 3u);
  Send(*data_, header, std::vector<std::byte>(16));
  PollUntil([&] { return exchange->Peek(3, 1) != nullptr; });
  exchange->Release(3);
  EXPECT_EQ(Released(), 0u);
  transport_->Arm();  // before it sleeps
  EXPECT_EQ(Released(), 4u);
}

// A member that has ended an operation may not poll until the next one, while others continue.
TEST_F(RawPeer, ARoundIsToldAlsoWhereNothingIsSentInTheNext) {
  const std::vector<int> ranks = {0, 1};
  auto exchange = transport_->Open({7, 1}, ranks).TakeValue();
  Send(*data_, Header(MessageType::kChunk, 16), std::vector<std::byte>(16));
  PollUntil([&] { return exchange->Peek(0, 1) != nullptr; });
  exchange->Release(0);
  EXPECT_EQ(Released(), 0u);
  exchange->Release(1);
  EXPECT_EQ(Released(), 1u);
}

}  // namespace
}  // namespace horoscale
