// Strangers and broken clients of a store server must not disturb the job's clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <vector>

#include "platform/log.h"
#include "platform/tcp_socket.h"
#include "platform/wait.h"
#include "rendezvous/auth.h"
#include "rendezvous/sealed_records.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_protocol.h"
#include "rendezvous/store_server.h"
#include "support/captured_log.h"

namespace horoscale {
namespace {

using testing::HasSubstr;

constexpr double kLong = 30;

Deadline Soon() { return Deadline::After(kLong); }

std::vector<std::byte> Bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

class StoreStrangersTest : public ::testing::Test {
 protected:
  StoreStrangersTest() { Restart({}); }

  void Restart(StoreServerOptions options) {
    client_.reset();
    options.secret = "secret";
    server_ = StoreServer::Start(std::move(options)).TakeValue();
    client_ = StoreClient::Connect("127.0.0.1", server_->port(), "secret", kLong).TakeValue();
  }

  // Old and new clients of the job are served.
  void ExpectServiceAsUsual() {
    const std::string key = "check " + std::to_string(checks_++);
    EXPECT_TRUE(client_->Set(key, Bytes(key)).ok());
    auto another = StoreClient::Connect("127.0.0.1", server_->port(), "secret", kLong);
    ASSERT_TRUE(another.ok()) << another.status().message();
    EXPECT_EQ(*(*another)->Get(key, 0), Bytes(key));
  }

  ByteStream Connect() {
    Result<ByteStream> stream = ConnectTcp("127.0.0.1", server_->port(), Soon());
    EXPECT_TRUE(stream.ok()) << stream.status().message();
    return stream.TakeValue();
  }

  ByteStream ConnectAuthenticated() {
    ByteStream stream = Connect();
    EXPECT_TRUE(AuthenticateToServer(stream, "secret", kStoreAuthContext,
                                     Protection::kAuthenticated, Soon())
                    .ok());
    UseSealedRecords(stream);
    return stream;
  }

  static void Send(ByteStream& stream, std::span<const std::byte> bytes) {
    EXPECT_TRUE(stream.SendAll(bytes, Soon()).ok());
  }

  // Reads until the server closes the connection; returns the bytes.
  static std::vector<std::byte> ReadToEnd(ByteStream& stream) {
    std::vector<std::byte> all;
    std::byte byte;
    Status status;
    while ((status = stream.ReceiveAll(std::span(&byte, 1), Soon())).ok()) all.push_back(byte);
    EXPECT_EQ(status.code(), StatusCode::kSystem) << status.message();
    return all;
  }

  // As the server logs it.
  static std::string NameOf(const ByteStream& stream) {
    sockaddr_in local{};
    socklen_t length = sizeof(local);
    getsockname(stream.fd(), reinterpret_cast<sockaddr*>(&local), &length);
    return "127.0.0.1:" + std::to_string(ntohs(local.sin_port));
  }

  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> client_;
  int checks_ = 0;
};

TEST_F(StoreStrangersTest, SilenceIsCutOffWithALineThatNamesThePeer) {
  Restart({.handshake_seconds = 0.05});
  CapturedLog log;
  ByteStream nothing = Connect();
  ByteStream one_byte = Connect();
  Send(one_byte, Bytes("H"));
  EXPECT_TRUE(ReadToEnd(nothing).empty());
  EXPECT_TRUE(ReadToEnd(one_byte).empty());
  EXPECT_TRUE(log.Saw(NameOf(nothing) + ": it did not authenticate"));
  EXPECT_TRUE(log.Saw(NameOf(one_byte) + ": it did not authenticate"));
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, AHandshakeThatStopsHalfWayIsCutOff) {
  Restart({.handshake_seconds = 0.05});
  CapturedLog log;
  ByteStream stream = Connect();
  Handshake handshake = Handshake::Create(Handshake::Role::kClient, "secret", kStoreAuthContext,
                                          Protection::kAuthenticated)
                            .TakeValue();
  const std::vector<std::byte> hello = handshake.TakeOutput();
  Send(stream, hello);
  EXPECT_EQ(ReadToEnd(stream).size(), hello.size());
  EXPECT_TRUE(log.Saw(NameOf(stream)));
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, GarbageIsRefused) {
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\n\r\n"),
        std::string(100, '\xff'),  // read as a length: 4 GiB
        std::string(100, '\0'), std::string("\x80\x04\x95") + std::string(100, 'p')}) {  // a pickle
    CapturedLog log;
    ByteStream stream = Connect();
    Send(stream, Bytes(garbage));
    EXPECT_TRUE(ReadToEnd(stream).empty());
    EXPECT_TRUE(log.Saw(NameOf(stream) + ": it does not speak"));
    ExpectServiceAsUsual();
  }
}

TEST_F(StoreStrangersTest, AValidFrameBeforeAuthenticationHasNoEffect) {
  CapturedLog log;
  ByteStream stream = Connect();
  Send(stream, EncodeSet("planted", std::vector<std::byte>(100)));
  EXPECT_TRUE(ReadToEnd(stream).empty());
  EXPECT_EQ(client_->Get("planted", 0).status().code(), StatusCode::kTimeout);
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, AFrameBehindAWrongProofHasNoEffect) {
  CapturedLog log;
  ByteStream stream = Connect();
  Handshake handshake = Handshake::Create(Handshake::Role::kClient, "guess", kStoreAuthContext,
                                          Protection::kAuthenticated)
                            .TakeValue();
  Send(stream, handshake.TakeOutput());
  std::vector<std::byte> hello(handshake.wanted());
  ASSERT_TRUE(stream.ReceiveAll(hello, Soon()).ok());
  ASSERT_TRUE(handshake.Feed(hello).ok());
  std::vector<std::byte> bytes = handshake.TakeOutput();
  const std::vector<std::byte> frame = EncodeSet("planted", {});
  bytes.insert(bytes.end(), frame.begin(), frame.end());
  Send(stream, bytes);
  ReadToEnd(stream);
  EXPECT_TRUE(log.Saw(NameOf(stream)));
  EXPECT_EQ(client_->Get("planted", 0).status().code(), StatusCode::kTimeout);
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, AWrongSecretIsRefusedAndNotLogged) {
  CapturedLog log;
  ByteStream stream = Connect();
  EXPECT_EQ(
      AuthenticateToServer(stream, "hunter2", kStoreAuthContext, Protection::kAuthenticated, Soon())
          .code(),
      StatusCode::kUnauthenticated);
  EXPECT_TRUE(log.Saw(NameOf(stream) + ": the two processes have different secrets"));
  EXPECT_THAT(log.text(), testing::Not(HasSubstr("hunter2")));
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, AReplayedHandshakeIsRefused) {
  CapturedLog log;
  std::vector<std::byte> recorded;
  ByteStream stream = Connect();
  Handshake handshake = Handshake::Create(Handshake::Role::kClient, "secret", kStoreAuthContext,
                                          Protection::kAuthenticated)
                            .TakeValue();
  while (true) {
    const std::vector<std::byte> output = handshake.TakeOutput();
    recorded.insert(recorded.end(), output.begin(), output.end());
    Send(stream, output);
    if (handshake.done()) break;
    std::vector<std::byte> input(handshake.wanted());
    ASSERT_TRUE(stream.ReceiveAll(input, Soon()).ok());
    ASSERT_TRUE(handshake.Feed(input).ok());
  }
  ByteStream replay = Connect();
  Send(replay, recorded);
  const std::vector<std::byte> answer = ReadToEnd(replay);
  ASSERT_FALSE(answer.empty());
  EXPECT_EQ(answer.back(), std::byte{0}) << "the verdict";
  EXPECT_TRUE(log.Saw(NameOf(replay)));
  ExpectServiceAsUsual();
}

// Each byte arrives before the next timeout; only the total time is too long.
TEST_F(StoreStrangersTest, AHandshakeInDripsIsCutOff) {
  Restart({.handshake_seconds = 0.2});
  CapturedLog log;
  ByteStream stream = Connect();
  Handshake handshake = Handshake::Create(Handshake::Role::kClient, "secret", kStoreAuthContext,
                                          Protection::kAuthenticated)
                            .TakeValue();
  size_t sent = 0;
  for (const std::byte& byte : handshake.TakeOutput()) {
    if (!stream.SendAll(std::span(&byte, 1), Soon()).ok()) break;
    ++sent;
    if (WaitForDescriptor(stream.fd(), POLLIN, Deadline::After(0.05)).ok()) break;  // closed
  }
  EXPECT_LT(sent, 20u);
  EXPECT_TRUE(log.Saw(NameOf(stream) + ": it did not authenticate"));
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, ARankOfAnotherJobIsRefused) {
  StoreServerOptions options;
  options.secret = "the other job's secret";
  const auto other = StoreServer::Start(std::move(options)).TakeValue();
  CapturedLog log;
  auto lost = StoreClient::Connect("127.0.0.1", server_->port(), "the other job's secret", 0.2);
  EXPECT_EQ(lost.status().code(), StatusCode::kUnauthenticated) << lost.status().message();
  EXPECT_TRUE(log.Saw("different secrets"));
  EXPECT_THAT(log.text(), testing::Not(HasSubstr("the other job")));
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, TenThousandConnectionsOneAfterTheOtherLeaveNothing) {
  CapturedLog log;
  const UniqueFd before(dup(STDIN_FILENO));
  for (int i = 0; i < 10'000; ++i) {
    ByteStream stranger = Connect();
    if (i % 100 == 0) Send(stranger, Bytes("\x80\x04\x95 a pickle"));
  }
  ExpectServiceAsUsual();
  client_.reset();
  server_.reset();
  const UniqueFd after(dup(STDIN_FILENO));
  EXPECT_LE(after.get(), before.get()) << "descriptors are left";
}

TEST_F(StoreStrangersTest, FiveHundredConnectionsTakeNoMoreThanTheBound) {
  constexpr size_t kBound = 8;
  Restart({.handshake_seconds = 600, .max_unauthenticated = kBound});
  CapturedLog log;
  std::vector<ByteStream> strangers;
  for (int i = 0; i < 500; ++i) strangers.push_back(Connect());
  ExpectServiceAsUsual();  // accepted after all others
  for (size_t i = 0; i < strangers.size() - kBound; ++i)
    EXPECT_TRUE(ReadToEnd(strangers[i]).empty());
  ExpectServiceAsUsual();
  EXPECT_TRUE(log.Saw("too many unauthenticated connections"));
}

TEST_F(StoreStrangersTest, WithoutDescriptorsItComesBackToLife) {
  CapturedLog log;
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  const UniqueFd lowest_free(dup(STDIN_FILENO));
  rlimit one_more = before;
  one_more.rlim_cur = static_cast<rlim_t>(lowest_free.get()) + 2;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  {
    // The stranger's end takes the last descriptor, so the server can't accept.
    const ByteStream stranger = Connect();
    EXPECT_TRUE(log.Saw("could not accept a connection"));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, AnAuthenticatedClientWithAHugeLengthIsDropped) {
  CapturedLog log;
  ByteStream stream = ConnectAuthenticated();
  Send(stream, std::vector<std::byte>(4, std::byte{0xff}));
  EXPECT_TRUE(ReadToEnd(stream).empty());
  EXPECT_TRUE(log.Saw(NameOf(stream) + ": store frame of 4294967295 bytes"));
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, ASecondRequestBeforeTheReplyIsDropped) {
  CapturedLog log;
  ByteStream stream = ConnectAuthenticated();
  Send(stream, EncodeGet("never", 600'000));
  Send(stream, EncodeGet("never", 600'000));
  EXPECT_TRUE(ReadToEnd(stream).empty());
  EXPECT_TRUE(log.Saw(NameOf(stream) + ": a second request"));
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, AClientThatNeverReadsIsDropped) {
  CapturedLog log;
  ASSERT_TRUE(client_->Set("large", std::vector<std::byte>(kStoreMaxValueBytes)).ok());
  ByteStream stream = ConnectAuthenticated();
  Status status;
  const std::vector<std::byte> get = EncodeGet("large", 0);
  while (status.ok()) status = stream.SendAll(get, Soon());
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  EXPECT_TRUE(log.Saw(NameOf(stream) + ": a second request"));
  ExpectServiceAsUsual();
}

TEST_F(StoreStrangersTest, AWaitingClientThatLeavesIsForgotten) {
  {
    ByteStream stream = ConnectAuthenticated();
    Send(stream, EncodeGet("late", 600'000));
  }
  ExpectServiceAsUsual();
  EXPECT_TRUE(client_->Set("late", Bytes("v")).ok());
  EXPECT_EQ(*client_->Get("late", 0), Bytes("v"));
}

TEST_F(StoreStrangersTest, AFrameInSingleBytesIsServed) {
  ByteStream stream = ConnectAuthenticated();
  for (const std::byte& byte : EncodeSet("slow", Bytes("v"))) Send(stream, std::span(&byte, 1));
  EXPECT_EQ(*client_->Get("slow", kLong), Bytes("v"));
}

TEST_F(StoreStrangersTest, TheLogIsBounded) {
  CapturedLog log;
  for (int i = 0; i < 200; ++i) {
    ByteStream stream = Connect();
    Send(stream, std::vector<std::byte>(100));
    ReadToEnd(stream);
  }
  ExpectServiceAsUsual();
  EXPECT_TRUE(log.Saw("the store dropped"));
  EXPECT_LT(std::ranges::count(log.text(), '\n'), 200);
}

}  // namespace
}  // namespace horoscale
