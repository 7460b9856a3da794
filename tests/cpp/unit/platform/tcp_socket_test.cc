#include "platform/tcp_socket.h"

#include <ctype.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <thread>

namespace horoscale {
namespace {

Deadline Soon() { return Deadline::After(30); }

class TcpSocketTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TcpSocketTest, ConnectsAndAccepts) {
  Result<TcpListener> listener = TcpListener::Create(GetParam(), 0);
  if (!listener.ok()) GTEST_SKIP() << listener.status().message();
  ASSERT_NE(listener->port(), 0);
  Result<ByteStream> client = ConnectTcp(GetParam(), listener->port(), Soon());
  ASSERT_TRUE(client.ok()) << client.status().message();
  Result<ByteStream> server = listener->Accept(Soon());
  ASSERT_TRUE(server.ok());
  for (ByteStream* stream : {&*client, &*server}) {
    int no_delay = 0;
    socklen_t length = sizeof(no_delay);
    getsockopt(stream->fd(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &length);
    EXPECT_NE(no_delay, 0);
    EXPECT_NE(fcntl(stream->fd(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(fcntl(stream->fd(), F_GETFL) & O_NONBLOCK, 0);
  }
  EXPECT_THAT(client->peer(), testing::EndsWith(":" + std::to_string(listener->port())));
  std::array<std::byte, 4> sent = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  std::array<std::byte, 4> received{};
  ASSERT_TRUE(client->SendAll(sent, Soon()).ok());
  ASSERT_TRUE(server->ReceiveAll(received, Soon()).ok());
  EXPECT_EQ(sent, received);
}

std::string NameOfHost(const testing::TestParamInfo<const char*>& host) {
  std::string name = host.param;
  std::ranges::replace_if(name, [](unsigned char c) { return !isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Hosts, TcpSocketTest, testing::Values("127.0.0.1", "::1", "localhost"),
                         NameOfHost);

// A port without a listener; it stays bound, so that no other process gets it.
class DeadPort {
 public:
  DeadPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length);
    getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  uint16_t port() const { return port_; }
  void Listen() { listen(fd_.get(), 8); }

 private:
  UniqueFd fd_;
  uint16_t port_;
};

TEST(TcpConnectTest, ARefusalFailsAtOnceAndNamesTheAddress) {
  const DeadPort dead;
  const Result<ByteStream> stream = ConnectTcp("127.0.0.1", dead.port(), Soon());
  EXPECT_EQ(stream.status().code(), StatusCode::kSystem);
  EXPECT_THAT(stream.status().message(),
              testing::HasSubstr("127.0.0.1:" + std::to_string(dead.port())));
}

TEST(TcpConnectTest, RetriesUntilTheDeadline) {
  const DeadPort dead;
  const double start = MonotonicSeconds();
  EXPECT_FALSE(
      ConnectTcp("127.0.0.1", dead.port(), Deadline::After(0.1), WhenRefused::kRetry).ok());
  EXPECT_GE(MonotonicSeconds() - start, 0.1);
}

TEST(TcpConnectTest, RetriesUntilTheServerIsThere) {
  DeadPort dead;
  std::optional<Result<ByteStream>> stream;
  std::thread client(
      [&] { stream.emplace(ConnectTcp("127.0.0.1", dead.port(), Soon(), WhenRefused::kRetry)); });
  dead.Listen();
  client.join();
  EXPECT_TRUE(stream->ok()) << stream->status().message();
}

TEST(TcpConnectTest, AnUnknownHostIsNamed) {
  const Result<ByteStream> stream = ConnectTcp("no-such-host.invalid", 1, Soon());
  EXPECT_EQ(stream.status().code(), StatusCode::kSystem);
  EXPECT_THAT(stream.status().message(), testing::HasSubstr("no-such-host.invalid"));
}

TEST(TcpListenTest, APortInUseIsAnErrorThatNamesIt) {
  const Result<TcpListener> first = TcpListener::Create("127.0.0.1", 0);
  ASSERT_TRUE(first.ok());
  const Result<TcpListener> second = TcpListener::Create("127.0.0.1", first->port());
  EXPECT_EQ(second.status().code(), StatusCode::kSystem);
  EXPECT_THAT(second.status().message(),
              testing::HasSubstr("127.0.0.1:" + std::to_string(first->port())));
}

TEST(TcpListenTest, AcceptGivesUpAtTheDeadline) {
  Result<TcpListener> listener = TcpListener::Create("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(listener->Accept(Deadline::After(0.01)).status().code(), StatusCode::kTimeout);
}

// When a connection ends whose peer's machine goes silent at 0, if the program first sends at
// `sent`: the kernel's rules, without its clock.
double EndOfSilence(const SilenceTimes& times, double sent) {
  const double limit = times.unanswered_ms / 1e3;
  double probed = times.idle_s;  // the first probe
  for (int probe = 1; probe <= times.probes && probed < sent; ++probe) {
    probed += times.interval_s;
    // This probe has had no answer by then.
    if (probed < sent && (probed >= limit || probe == times.probes)) return probed;
  }
  return sent + limit;  // no probes while data is unacknowledged
}

TEST(SilenceTest, IsNoticedBelowItsTimeWhateverIsSent) {
  for (const double seconds : {5.0, 5.5, 6.0, 7.5, 10.0, 30.0, 61.0, 3600.0, 86400.0}) {
    const SilenceTimes times = TimesOfSilence(seconds);
    for (int step = 0; step <= 1000; ++step) {
      const double end = EndOfSilence(times, seconds * step / 1000);
      EXPECT_LE(end, 0.8 * seconds) << "of " << seconds << " s, sent after " << step << " / 1000";
      EXPECT_GE(end, 0.2 * seconds) << "of " << seconds << " s, sent after " << step << " / 1000";
    }
  }
}

// Neither a lost probe nor an outage that begins just before the first one counts as silence.
TEST(SilenceTest, AShortInterruptionIsNone) {
  for (const double seconds : {10.0, 30.0, 61.0, 3600.0, 86400.0}) {
    const SilenceTimes times = TimesOfSilence(seconds);
    EXPECT_GE(times.probes, 3) << "of " << seconds << " s";
    EXPECT_GE((times.probes - 1) * times.interval_s, 0.2 * seconds) << "of " << seconds << " s";
  }
}

TEST(TcpSocketTest, AConnectionThatIsGivenUpEndsAtThePeerThoughMuchIsUnsent) {
  TcpListener listener = TcpListener::Create("127.0.0.1", 0).TakeValue();
  const Deadline deadline = Deadline::After(20);
  ByteStream near = ConnectTcp("127.0.0.1", listener.port(), deadline).TakeValue();
  ByteStream far = listener.Accept(deadline).TakeValue();
  const std::vector<std::byte> much(1 << 20);
  while (*near.SendSome(much) > 0) {  // until the buffers are full
  }
  Abort(near);
  std::vector<std::byte> read(1 << 20);
  Status status;
  while (status.ok()) status = far.ReceiveAll(read, deadline);
  EXPECT_EQ(status.code(), StatusCode::kSystem) << status.message();
}

TEST(TcpSocketTest, LoopbackIsToldByAddressNotByName) {
  for (const char* address : {"127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopbackAddress(address)) << address;
    EXPECT_TRUE(IsLoopbackHost(address)) << address;
  }
  for (const char* address : {"10.0.0.1", "128.0.0.1", "0.0.0.0", "::", "::2", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(IsLoopbackAddress(address)) << address;
    EXPECT_FALSE(IsLoopbackHost(address)) << address;
  }
  for (const char* name : {"127.example.invalid", "localhost", ""}) {
    EXPECT_FALSE(IsLoopbackAddress(name)) << name << " is a name";
  }
  EXPECT_FALSE(IsLoopbackHost("127.example.invalid"));
  EXPECT_TRUE(IsLoopbackHost("localhost"));
}

}  // namespace
}  // namespace horoscale
