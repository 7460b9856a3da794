// TLS between two ends of a socket in this process, without blocking.

#include "platform/tls_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "platform/byte_stream.h"
#include "platform/unix_socket.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;
using Role = TlsLayer::Role;

constexpr TlsKey kKey = {std::byte{1}, std::byte{2}, std::byte{3}};
constexpr TlsKey kOtherKey = {std::byte{9}};

std::vector<std::byte> Bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 31) >> 3);
  return bytes;
}

class TlsLayerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto library = TlsLibrary::Open();
    if (!library.ok()) GTEST_SKIP() << library.status().message();
  }

  void Connect(const TlsKey& servers_key = kKey, uint64_t bytes_of_key = TlsLayer::kBytesOfKey) {
    auto [near, far] = UnixPair().TakeValue();
    client_ = std::make_unique<ByteStream>(std::move(near));
    server_ = std::make_unique<ByteStream>(std::move(far));
    auto client = TlsLayer::Create(Role::kClient, client_->fd(), "the server", kKey, bytes_of_key);
    auto server =
        TlsLayer::Create(Role::kServer, server_->fd(), "the client", servers_key, bytes_of_key);
    client_layer_ = client->get();
    client_->SetLayer(client.TakeValue());
    server_->SetLayer(server.TakeValue());
  }

  // Alternates between both sides of the handshake; returns the status of each.
  std::pair<Status, Status> Shake() {
    Result<bool> client = false;
    Result<bool> server = false;
    for (int turns = 0; turns < 20; ++turns) {
      if (client.ok() && !*client) client = client_->Handshake();
      if (server.ok() && !*server) server = server_->Handshake();
    }
    const auto ended = [](const Result<bool>& result) {
      if (!result.ok()) return result.status();
      return *result ? Status::Ok() : Status::Timeout("it waits");
    };
    return {ended(client), ended(server)};
  }

  // Sends everything, in the pieces that `offer` selects, and receives it.
  std::vector<std::byte> Carry(const std::vector<std::byte>& bytes, size_t first_piece,
                               size_t read_at_once = 100'000) {
    std::vector<std::byte> got;
    std::vector<std::byte> buffer(read_at_once);
    std::span<const std::byte> rest = bytes;
    while (got.size() < bytes.size()) {
      const size_t cut = std::min(first_piece, rest.size());
      const std::span<const std::byte> pieces[] = {rest.first(cut), {}, rest.subspan(cut)};
      const Result<size_t> sent = client_->SendSome(pieces);
      EXPECT_TRUE(sent.ok()) << sent.status().message();
      rest = rest.subspan(*sent);
      refused_ += *sent == 0 && !rest.empty() ? 1 : 0;
      const Result<size_t> arrived = server_->ReceiveSome(buffer);
      EXPECT_TRUE(arrived.ok()) << arrived.status().message();
      if (!sent.ok() || !arrived.ok()) break;
      got.insert(got.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(*arrived));
    }
    return got;
  }

  std::unique_ptr<ByteStream> client_;
  std::unique_ptr<ByteStream> server_;
  TlsLayer* client_layer_ = nullptr;
  int refused_ = 0;
};

TEST_F(TlsLayerTest, BytesArriveWhateverPiecesTheyAreOfferedIn) {
  Connect();
  const auto [client, server] = Shake();
  ASSERT_TRUE(client.ok()) << client.message();
  ASSERT_TRUE(server.ok()) << server.message();
  const std::vector<std::byte> bytes = Bytes(3 << 20);
  for (const size_t first_piece : {1, 100, 16'384, 20'000})
    EXPECT_EQ(Carry(bytes, first_piece), bytes);
  EXPECT_GT(refused_, 0) << "the socket was never full";
}

TEST_F(TlsLayerTest, TheHandshakeIsPartOfTheFirstCalls) {
  Connect();
  const std::vector<std::byte> bytes = Bytes(100);
  EXPECT_EQ(Carry(bytes, 50), bytes);
}

TEST_F(TlsLayerTest, WhatHasLeftTheSocketIsPending) {
  Connect();
  ASSERT_TRUE(Shake().second.ok());
  ASSERT_EQ(*client_->SendSome(Bytes(100)), 100u);
  std::byte one;
  ASSERT_EQ(*server_->ReceiveSome({&one, 1}), 1u);
  EXPECT_TRUE(server_->HasPending());
  std::vector<std::byte> rest(100);
  EXPECT_EQ(*server_->ReceiveSome(rest), 99u);
  EXPECT_FALSE(server_->HasPending());
}

TEST_F(TlsLayerTest, WithoutTheKeyThereIsNoConnection) {
  Connect(kOtherKey);
  const auto [client, server] = Shake();
  EXPECT_FALSE(client.ok());
  EXPECT_FALSE(server.ok());
  std::byte one{};
  EXPECT_FALSE(client_->SendSome({&one, 1}).ok());
  EXPECT_FALSE(server_->ReceiveSome({&one, 1}).ok());
}

TEST_F(TlsLayerTest, KeysChangeWhileBytesGoOn) {
  Connect(kKey, 100'000);
  const std::vector<std::byte> bytes = Bytes(2 << 20);
  // Drains the socket, so that there is room for a key update from time to time.
  EXPECT_EQ(Carry(bytes, 5000, 1 << 20), bytes);
  EXPECT_EQ(Carry(bytes, 1, 1 << 20), bytes);
  if (client_layer_->kernel_sends()) GTEST_SKIP() << "the kernel keeps its key";
  EXPECT_GT(client_layer_->key_changes(), 10u);
}

// A key update that is due while both sockets are full must not keep either side from reading.
TEST_F(TlsLayerTest, KeysChangeWhereBothSidesAreFull) {
  Connect(kKey, 100'000);
  ASSERT_TRUE(Shake().second.ok());
  const std::vector<std::byte> bytes = Bytes(4 << 20);
  ByteStream* const sides[] = {client_.get(), server_.get()};
  size_t sent[2] = {};
  std::vector<std::byte> got[2];
  std::vector<std::byte> space(1 << 20);
  for (int turn = 0; turn < 1000 && (got[0].size() < bytes.size() || got[1].size() < bytes.size());
       ++turn) {
    for (int side = 0; side < 2; ++side) {
      for (size_t some = 1; some > 0;) {
        some = *sides[side]->SendSome(std::span(bytes).subspan(sent[side]));
        sent[side] += some;
      }
    }
    for (int side = 0; side < 2; ++side) {
      const size_t some = *sides[side]->ReceiveSome(space);
      got[side].insert(got[side].end(), space.begin(), space.begin() + static_cast<long>(some));
    }
  }
  EXPECT_EQ(got[0], bytes);
  EXPECT_EQ(got[1], bytes);
  if (client_layer_->kernel_sends()) GTEST_SKIP() << "the kernel keeps its key";
  EXPECT_GT(client_layer_->key_changes(), 10u);
}

// A stream whose bytes are relayed and inspected by a third party.
TEST_F(TlsLayerTest, NothingCanBeReadOrChangedOnTheWay) {
  auto [near, near_wire] = UnixPair().TakeValue();
  auto [far, far_wire] = UnixPair().TakeValue();
  near.SetLayer(TlsLayer::Create(Role::kClient, near.fd(), "the server", kKey).TakeValue());
  far.SetLayer(TlsLayer::Create(Role::kServer, far.fd(), "the client", kKey).TakeValue());
  std::vector<std::byte> seen;
  const auto pass_on = [&seen](ByteStream& from, ByteStream& to, bool changed) {
    std::vector<std::byte> bytes(10'000);
    bytes.resize(*from.ReceiveSome(bytes));
    seen.insert(seen.end(), bytes.begin(), bytes.end());
    if (changed) bytes.back() ^= std::byte{1};
    ASSERT_TRUE(to.SendAll(bytes, Deadline::After(20)).ok());
  };
  for (int turns = 0; turns < 5; ++turns) {
    ASSERT_TRUE(near.Handshake().ok());
    pass_on(near_wire, far_wire, false);
    ASSERT_TRUE(far.Handshake().ok());
    pass_on(far_wire, near_wire, false);
  }
  const std::vector<std::byte> secret(64, std::byte{0x5a});
  std::vector<std::byte> got(64);
  ASSERT_EQ(*near.SendSome(secret), 64u);
  pass_on(near_wire, far_wire, false);
  ASSERT_EQ(*far.ReceiveSome(got), 64u);
  EXPECT_EQ(got, secret);
  EXPECT_EQ(std::search(seen.begin(), seen.end(), secret.begin(), secret.begin() + 8), seen.end());
  ASSERT_EQ(*near.SendSome(secret), 64u);
  pass_on(near_wire, far_wire, true);
  const Status status = far.ReceiveSome(got).status();
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
  EXPECT_THAT(status.message(), HasSubstr("modified in transit"));
}

TEST_F(TlsLayerTest, TheEndOfTheStreamIsToldBehindItsBytes) {
  Connect();
  ASSERT_TRUE(Shake().second.ok());
  ASSERT_EQ(*client_->SendSome(Bytes(100)), 100u);
  client_.reset();
  std::vector<std::byte> got(200);
  EXPECT_EQ(*server_->ReceiveSome(got), 100u);
  EXPECT_TRUE(server_->HasPending());
  const Status status = server_->ReceiveSome(got).status();
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  EXPECT_THAT(status.message(), HasSubstr("closed the connection"));
}

TEST_F(TlsLayerTest, WritingToAClosedPeerIsAnErrorAndNoSignal) {
  Connect();
  ASSERT_TRUE(Shake().second.ok());
  server_.reset();
  Result<size_t> sent = size_t{0};
  const std::vector<std::byte> bytes = Bytes(100);
  for (int i = 0; i < 3 && sent.ok(); ++i) sent = client_->SendSome(bytes);
  EXPECT_EQ(sent.status().code(), StatusCode::kSystem);
}

}  // namespace
}  // namespace horoscale
