#include "platform/unix_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <thread>
#include <vector>

#include "platform/clock.h"
#include "platform/event_fd.h"
#include "platform/wait.h"

namespace horoscale {
namespace {

Deadline Soon() { return Deadline::After(30); }

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST(ByteStreamTest, MovesMoreThanTheSocketHolds) {
  auto [a, b] = UnixPair().TakeValue();
  std::vector<std::byte> sent(5'000'000);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 256);
  Status status;
  std::thread sender([&, &from = a] { status = from.SendAll(sent, Soon()); });
  std::vector<std::byte> received(sent.size());
  EXPECT_TRUE(b.ReceiveAll(received, Soon()).ok());
  sender.join();
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(sent, received);
}

TEST(ByteStreamTest, GivesUpAtTheDeadline) {
  auto [a, b] = UnixPair().TakeValue();
  std::vector<std::byte> bytes(5'000'000);
  const double start = MonotonicSeconds();
  EXPECT_EQ(a.SendAll(bytes, Deadline::After(0.02)).code(), StatusCode::kTimeout);
  EXPECT_EQ(a.ReceiveAll(bytes, Deadline::After(0.02)).code(), StatusCode::kTimeout);
  EXPECT_GE(MonotonicSeconds() - start, 0.04);
}

TEST(ByteStreamTest, EndOfStreamIsAnErrorOnBothSides) {
  auto [a, b] = UnixPair().TakeValue();
  {
    const ByteStream closing = std::move(b);
  }
  std::array<std::byte, 10> bytes{};
  EXPECT_EQ(a.ReceiveAll(bytes, Soon()).code(), StatusCode::kSystem);
  EXPECT_EQ(a.SendAll(bytes, Soon()).code(), StatusCode::kSystem);  // and no SIGPIPE
}

TEST(ByteStreamTest, SomeTakesWhatIsThere) {
  auto [a, b] = UnixPair().TakeValue();
  std::array<std::byte, 10> bytes{};
  EXPECT_EQ(*b.ReceiveSome(bytes), 0u);
  EXPECT_EQ(*a.SendSome(std::span(bytes).first(3)), 3u);
  EXPECT_EQ(*b.ReceiveSome(bytes), 3u);
  EXPECT_EQ(*b.ReceiveSome(std::span<std::byte>()), 0u);
}

TEST(UnixSocketTest, ConnectsAndAccepts) {
  Result<UnixListener> listener = UnixListener::Create();
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  Result<ByteStream> client = ConnectUnix(listener->name(), Soon());
  ASSERT_TRUE(client.ok()) << client.status().message();
  Result<ByteStream> server = listener->Accept(Soon());
  ASSERT_TRUE(server.ok());
  const std::array<std::byte, 3> sent = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> received{};
  ASSERT_TRUE(server->SendAll(sent, Soon()).ok());
  ASSERT_TRUE(client->ReceiveAll(received, Soon()).ok());
  EXPECT_EQ(sent, received);
  EXPECT_NE(fcntl(client->fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(fcntl(server->fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(fcntl(client->fd(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(UnixSocketTest, NamesAreNew) {
  const Result<UnixListener> a = UnixListener::Create();
  const Result<UnixListener> b = UnixListener::Create();
  EXPECT_NE(a->name(), b->name());
}

TEST(UnixSocketTest, NobodyListeningIsAnErrorAtOnce) {
  std::string name;
  {
    name = UnixListener::Create()->name();
  }
  EXPECT_EQ(ConnectUnix(name, Soon()).status().code(), StatusCode::kSystem);
  EXPECT_EQ(ConnectUnix("", Soon()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectUnix(std::string(200, 'x'), Soon()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(UnixSocketTest, AcceptGivesUpAtTheDeadline) {
  Result<UnixListener> listener = UnixListener::Create();
  EXPECT_EQ(listener->Accept(Deadline::After(0.01)).status().code(), StatusCode::kTimeout);
}

TEST(UnixSocketTest, ConnectGivesUpWhenTheBacklogIsFull) {
  Result<UnixListener> listener = UnixListener::Create();
  ASSERT_EQ(listen(listener->fd(), 0), 0);
  std::vector<ByteStream> waiting;
  while (true) {
    Result<ByteStream> client = ConnectUnix(listener->name(), Deadline::After(0.05));
    if (!client.ok()) {
      EXPECT_EQ(client.status().code(), StatusCode::kTimeout) << client.status().message();
      break;
    }
    waiting.push_back(client.TakeValue());
    ASSERT_LT(waiting.size(), 100u);
  }
}

TEST(UnixSocketTest, DescriptorsTravelInTheirPlace) {
  auto [a, b] = UnixPair().TakeValue();
  EventFd first = EventFd::Create().TakeValue();
  EventFd second = EventFd::Create().TakeValue();
  const std::array<std::byte, 2> before{};
  std::array<std::byte, 2> received;
  ASSERT_TRUE(a.SendAll(before, Soon()).ok());
  const std::array<int, 2> fds = {first.fd(), second.fd()};
  ASSERT_TRUE(SendDescriptors(a, fds, Soon()).ok());
  ASSERT_TRUE(b.ReceiveAll(received, Soon()).ok());
  Result<std::vector<UniqueFd>> got = ReceiveDescriptors(b, 2, Soon());
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_NE(fcntl((*got)[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  EventFd(std::move((*got)[1])).Signal();
  EXPECT_TRUE(WaitForDescriptor(second.fd(), POLLIN, Deadline::After(0)).ok());
  EXPECT_FALSE(WaitForDescriptor(first.fd(), POLLIN, Deadline::After(0)).ok());
}

TEST(UnixSocketTest, AWrongNumberOfDescriptorsIsRefusedAndNoneLeaks) {
  auto [a, b] = UnixPair().TakeValue();
  const EventFd event = EventFd::Create().TakeValue();
  const size_t open = OpenDescriptors();
  const std::vector<int> fds(kMaxDescriptors, event.fd());
  for (const size_t wanted : {size_t{0}, size_t{3}, kMaxDescriptors + 1}) {
    ASSERT_TRUE(SendDescriptors(a, fds, Soon()).ok());
    EXPECT_EQ(ReceiveDescriptors(b, wanted, Soon()).status().code(), StatusCode::kProtocol);
  }
  // A byte without descriptors.
  ASSERT_TRUE(a.SendAll(std::array<std::byte, 1>{}, Soon()).ok());
  EXPECT_EQ(ReceiveDescriptors(b, 1, Soon()).status().code(), StatusCode::kProtocol);
  EXPECT_EQ(OpenDescriptors(), open);
  EXPECT_FALSE(SendDescriptors(a, {}, Soon()).ok());
  EXPECT_FALSE(SendDescriptors(a, std::vector<int>(kMaxDescriptors + 1), Soon()).ok());
}

TEST(UnixSocketTest, WaitingForDescriptorsEndsAtTheDeadlineAndAtTheEnd) {
  auto [a, b] = UnixPair().TakeValue();
  EXPECT_EQ(ReceiveDescriptors(b, 1, Deadline::After(0.01)).status().code(), StatusCode::kTimeout);
  {
    const ByteStream closing = std::move(a);
  }
  EXPECT_EQ(ReceiveDescriptors(b, 1, Soon()).status().code(), StatusCode::kSystem);
}

}  // namespace
}  // namespace horoscale
