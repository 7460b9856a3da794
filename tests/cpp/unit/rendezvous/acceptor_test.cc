// Which connections a link's socket accepts while many strangers connect, or stay.
#include "rendezvous/acceptor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "platform/tcp_socket.h"
#include "support/captured_log.h"

namespace horoscale {
namespace {

constexpr double kLong = 30;
constexpr Protection kProtection = Protection::kAuthenticated;

class AcceptorTest : public ::testing::Test {
 protected:
  Acceptor Make(double handshake_seconds = kHandshakeSeconds) {
    const auto accept = [this] { return listener_.Accept(Deadline::After(0)); };
    return Acceptor::Create({{listener_.fd(), accept}}, "secret", "link", kProtection,
                            handshake_seconds)
        .TakeValue();
  }
  ByteStream Connect() {
    return ConnectTcp("127.0.0.1", listener_.port(), Deadline::After(kLong)).TakeValue();
  }
  // Whether the acceptor closes the connection while it waits for others.
  static bool IsDropped(Acceptor& acceptor, ByteStream& stream) {
    std::byte one;
    for (const Deadline deadline = Deadline::After(kLong); !deadline.Passed();) {
      EXPECT_EQ(acceptor.Next(Deadline::After(0.02)).status().code(), StatusCode::kTimeout);
      if (!stream.ReceiveSome(std::span(&one, 1)).ok()) return true;
    }
    return false;
  }
  // Like a rank that is crowded out: retries.
  Status BeLetIn() {
    for (const Deadline deadline = Deadline::After(kLong);;) {
      auto stream = ConnectTcp("127.0.0.1", listener_.port(), deadline);
      if (!stream.ok()) return stream.status();
      const Status status = AuthenticateToServer(*stream, "secret", "link", kProtection, deadline);
      if (!MayBeLetInLater(status) || deadline.Passed()) return status;
    }
  }

  CapturedLog log_;
  TcpListener listener_ = TcpListener::Create("127.0.0.1", 0).TakeValue();
};

TEST_F(AcceptorTest, OneThatSaysNothingIsDroppedInTime) {
  Acceptor acceptor = Make(0.05);
  ByteStream silent = Connect();
  EXPECT_TRUE(IsDropped(acceptor, silent));
}

TEST_F(AcceptorTest, SeveralDoorsLeadIn) {
  auto other = TcpListener::Create("127.0.0.1", 0).TakeValue();
  std::vector<Acceptor::Door> doors;
  for (TcpListener* door : {&listener_, &other}) {
    doors.push_back({door->fd(), [door] { return door->Accept(Deadline::After(0)); }});
  }
  Acceptor acceptor = Acceptor::Create(std::move(doors), "secret", "link", kProtection).TakeValue();
  for (const uint16_t port : {other.port(), listener_.port()}) {
    std::thread client([port] {
      auto stream = ConnectTcp("127.0.0.1", port, Deadline::After(kLong));
      EXPECT_TRUE(
          AuthenticateToServer(*stream, "secret", "link", kProtection, Deadline::After(kLong))
              .ok());
    });
    EXPECT_TRUE(acceptor.Next(Deadline::After(kLong)).ok());
    client.join();
  }
}

TEST_F(AcceptorTest, WhoIsCrowdedOutByStrangersComesInLater) {
  Acceptor acceptor = Make();
  ByteStream first = Connect();
  std::vector<ByteStream> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(Connect());
  EXPECT_TRUE(IsDropped(acceptor, first));
  EXPECT_TRUE(MayBeLetInLater(
      AuthenticateToServer(first, "secret", "link", kProtection, Deadline::After(kLong))));
  Status status;
  std::thread client([&] { status = BeLetIn(); });
  EXPECT_TRUE(acceptor.Next(Deadline::After(kLong)).ok());
  client.join();
  EXPECT_TRUE(status.ok()) << status.message();
}

// The process has run out of descriptors while strangers connect and stay.
TEST_F(AcceptorTest, AFloodThatTakesAllDescriptorsEndsNothing) {
  constexpr int kFew = 24;
  Acceptor acceptor = Make(0.2);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<ByteStream> strangers;
  for (int i = 0; i < 2 * kFew; ++i) strangers.push_back(Connect());
  ByteStream own = Connect();
  // Open descriptors above the new limit stay open; only a few more than those in use can be
  // opened.
  const int next = dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  close(next);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next) + kFew / 2;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Status status;
  std::thread client([&] {
    status = AuthenticateToServer(own, "secret", "link", kProtection, Deadline::After(kLong));
  });
  const auto let_in = acceptor.Next(Deadline::After(kLong));
  client.join();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(let_in.ok()) << let_in.status().message();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(log_.Saw("dropped to free a descriptor"));
  EXPECT_NE(acceptor.trouble(), "");
}

}  // namespace
}  // namespace horoscale
