#include "rendezvous/auth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "platform/unix_socket.h"

namespace horoscale {
namespace {

using Role = Handshake::Role;

Handshake::Nonce NonceOf(int byte) {
  Handshake::Nonce nonce;
  nonce.fill(static_cast<std::byte>(byte));
  return nonce;
}

// The result of passing bytes between two handshakes until neither wants more or one refuses: the
// status of each, and the bytes that the client sent.
struct Exchanged {
  Status client;
  Status server;
  std::vector<std::byte> client_sent;
};

Exchanged Exchange(Handshake& client, Handshake& server) {
  Exchanged result;
  std::vector<std::byte> to_server;
  std::vector<std::byte> to_client;
  const auto collect = [](Handshake& from, std::vector<std::byte>& pipe) {
    const std::vector<std::byte> output = from.TakeOutput();
    pipe.insert(pipe.end(), output.begin(), output.end());
    return output;
  };
  const auto feed = [](Handshake& to, std::vector<std::byte>& pipe, Status& status) {
    const size_t wanted = to.wanted();
    if (wanted == 0 || pipe.size() < wanted) return false;
    status = to.Feed(std::span(pipe).first(wanted));
    pipe.erase(pipe.begin(), pipe.begin() + static_cast<ptrdiff_t>(wanted));
    return true;
  };
  bool moved = true;
  while (moved) {
    const std::vector<std::byte> output = collect(client, to_server);
    result.client_sent.insert(result.client_sent.end(), output.begin(), output.end());
    collect(server, to_client);
    moved = feed(server, to_server, result.server);
    collect(server, to_client);
    moved = feed(client, to_client, result.client) || moved;
  }
  EXPECT_TRUE(to_server.empty() || !result.server.ok());
  return result;
}

TEST(HandshakeTest, TheSameSecretAndContextSucceed) {
  Handshake client(Role::kClient, "secret", "link 0 1", Protection::kAuthenticated, NonceOf(1));
  Handshake server(Role::kServer, "secret", "link 0 1", Protection::kAuthenticated, NonceOf(2));
  const Exchanged result = Exchange(client, server);
  EXPECT_TRUE(result.client.ok() && result.server.ok());
  EXPECT_TRUE(client.done() && server.done());
  EXPECT_EQ(client.wanted(), 0u);
  EXPECT_EQ(server.wanted(), 0u);
}

TEST(HandshakeTest, ADifferentSecretOrContextFailsOnBothSides) {
  const std::pair<const char*, const char*> servers[] = {
      {"other", "store"}, {"", "store"}, {"secre", "tstore"}, {"secret", "link 0 1"}};
  for (const auto& [secret, context] : servers) {
    Handshake client(Role::kClient, "secret", "store", Protection::kAuthenticated, NonceOf(1));
    Handshake server(Role::kServer, secret, context, Protection::kAuthenticated, NonceOf(2));
    const Exchanged result = Exchange(client, server);
    EXPECT_EQ(result.client.code(), StatusCode::kUnauthenticated);
    EXPECT_EQ(result.server.code(), StatusCode::kUnauthenticated);
    EXPECT_THAT(result.server.message(), testing::HasSubstr("HOROSCALE_SECRET"));
    EXPECT_FALSE(client.done() || server.done());
    EXPECT_EQ(server.wanted(), 0u);
    EXPECT_EQ(server.Feed({}).code(), StatusCode::kInternal);
  }
}

TEST(HandshakeTest, ARecordedSessionIsWorthNothingLater) {
  Handshake client(Role::kClient, "secret", "store", Protection::kAuthenticated, NonceOf(1));
  Handshake server(Role::kServer, "secret", "store", Protection::kAuthenticated, NonceOf(2));
  const std::vector<std::byte> recorded = Exchange(client, server).client_sent;
  Handshake later(Role::kServer, "secret", "store", Protection::kAuthenticated, NonceOf(3));
  const size_t hello = later.wanted();
  ASSERT_TRUE(later.Feed(std::span(recorded).first(hello)).ok());
  EXPECT_EQ(later.Feed(std::span(recorded).subspan(hello, later.wanted())).code(),
            StatusCode::kUnauthenticated);
}

TEST(HandshakeTest, AProofSentBackToItsMakerFails) {
  // A server without the secret that repeats the client's nonce and proof.
  Handshake client(Role::kClient, "secret", "store", Protection::kAuthenticated, NonceOf(1));
  const std::vector<std::byte> hello = client.TakeOutput();
  ASSERT_TRUE(client.Feed(hello).ok());
  const std::vector<std::byte> proof = client.TakeOutput();
  const std::byte accepted{1};
  ASSERT_TRUE(client.Feed(std::span(&accepted, 1)).ok());
  EXPECT_EQ(client.Feed(proof).code(), StatusCode::kUnauthenticated);
}

TEST(HandshakeTest, AServerThatOnlyClaimsToAcceptIsNotBelieved) {
  Handshake client(Role::kClient, "secret", "store", Protection::kAuthenticated, NonceOf(1));
  Handshake server(Role::kServer, "guess", "store", Protection::kAuthenticated, NonceOf(2));
  ASSERT_TRUE(server.Feed(client.TakeOutput()).ok());
  ASSERT_TRUE(client.Feed(server.TakeOutput()).ok());
  const std::byte accepted{1};
  ASSERT_TRUE(client.Feed(std::span(&accepted, 1)).ok());
  EXPECT_EQ(client.Feed(std::vector<std::byte>(client.wanted())).code(),
            StatusCode::kUnauthenticated);
}

TEST(HandshakeTest, AnotherVersionIsNamedOnBothSides) {
  Handshake client(Role::kClient, "secret", "store", Protection::kAuthenticated, NonceOf(1));
  Handshake server(Role::kServer, "secret", "store", Protection::kAuthenticated, NonceOf(2));
  std::vector<std::byte> hello = client.TakeOutput();
  hello[8] = std::byte{9};  // the version follows the magic
  const Status refused = server.Feed(hello);
  EXPECT_EQ(refused.code(), StatusCode::kProtocol);
  EXPECT_THAT(refused.message(), testing::HasSubstr("version 9"));
  EXPECT_FALSE(server.TakeOutput().empty()) << "the client learns the server's version";
}

TEST(HandshakeTest, AStrangerGetsNoAnswer) {
  Handshake server(Role::kServer, "secret", "store", Protection::kAuthenticated, NonceOf(2));
  EXPECT_EQ(server.Feed(std::vector<std::byte>(server.wanted(), std::byte{'G'})).code(),
            StatusCode::kProtocol);
  EXPECT_TRUE(server.TakeOutput().empty());
}

TEST(HandshakeTest, AnyChangedByteOfTheClientFails) {
  Handshake model(Role::kClient, "secret", "store", Protection::kAuthenticated, NonceOf(1));
  const size_t hello_bytes = model.TakeOutput().size();
  for (size_t i = 0; i < hello_bytes + sizeof(Sha256Digest); ++i) {
    Handshake client(Role::kClient, "secret", "store", Protection::kAuthenticated, NonceOf(1));
    Handshake server(Role::kServer, "secret", "store", Protection::kAuthenticated, NonceOf(2));
    std::vector<std::byte> hello = client.TakeOutput();
    if (i < hello_bytes) hello[i] ^= std::byte{1};
    if (!server.Feed(hello).ok()) continue;
    ASSERT_TRUE(client.Feed(server.TakeOutput()).ok());
    std::vector<std::byte> proof = client.TakeOutput();
    if (i >= hello_bytes) proof[i - hello_bytes] ^= std::byte{1};
    EXPECT_EQ(server.Feed(proof).code(), StatusCode::kUnauthenticated) << i;
  }
}

class AuthenticateTest : public ::testing::Test {
 protected:
  AuthenticateTest() : pair_(UnixPair().TakeValue()) {}
  std::pair<ByteStream, ByteStream> pair_;
};

TEST_F(AuthenticateTest, OverAStreamLeavesWhatFollowsAlone) {
  Status server_status;
  std::byte received{};
  std::thread server([&] {
    server_status = AuthenticateClient(pair_.second, "s", "link 0 1", Protection::kAuthenticated,
                                       Deadline::After(30));
    if (server_status.ok()) {
      server_status = pair_.second.ReceiveAll(std::span(&received, 1), Deadline::After(30));
    }
  });
  EXPECT_TRUE(AuthenticateToServer(pair_.first, "s", "link 0 1", Protection::kAuthenticated,
                                   Deadline::After(30))
                  .ok());
  const std::byte sent{99};
  EXPECT_TRUE(pair_.first.SendAll(std::span(&sent, 1), Deadline::After(30)).ok());
  server.join();
  EXPECT_TRUE(server_status.ok());
  EXPECT_EQ(received, sent);
}

TEST_F(AuthenticateTest, BothSidesLearnOfAWrongSecret) {
  Status server_status;
  std::thread server([&] {
    server_status = AuthenticateClient(pair_.second, "right", "store", Protection::kAuthenticated,
                                       Deadline::After(30));
  });
  EXPECT_EQ(AuthenticateToServer(pair_.first, "wrong", "store", Protection::kAuthenticated,
                                 Deadline::After(30))
                .code(),
            StatusCode::kUnauthenticated);
  server.join();
  EXPECT_EQ(server_status.code(), StatusCode::kUnauthenticated);
}

TEST_F(AuthenticateTest, SilenceEndsAtTheDeadline) {
  EXPECT_EQ(AuthenticateClient(pair_.second, "s", "store", Protection::kAuthenticated,
                               Deadline::After(0.02))
                .code(),
            StatusCode::kTimeout);
  EXPECT_EQ(AuthenticateToServer(pair_.first, "s", "store", Protection::kAuthenticated,
                                 Deadline::After(0.02))
                .code(),
            StatusCode::kTimeout);
}

TEST_F(AuthenticateTest, APeerThatLeavesIsAnError) {
  {
    const ByteStream closing = std::move(pair_.second);
  }
  EXPECT_EQ(AuthenticateToServer(pair_.first, "s", "store", Protection::kAuthenticated,
                                 Deadline::After(30))
                .code(),
            StatusCode::kSystem);
}

}  // namespace
}  // namespace horoscale
