#include "platform/poller.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <limits>
#include <thread>

#include "platform/clock.h"
#include "platform/event_fd.h"
#include "platform/unix_socket.h"

namespace horoscale {
namespace {

class PollerTest : public ::testing::Test {
 protected:
  PollerTest() : poller_(Poller::Create().TakeValue()), event_(EventFd::Create().TakeValue()) {}

  size_t Wait(double seconds) {
    const Result<size_t> count = poller_.Wait(seconds, ready_);
    EXPECT_TRUE(count.ok());
    return count.ok() ? *count : 0;
  }

  Poller poller_;
  EventFd event_;
  std::array<Poller::Ready, 4> ready_;
};

TEST_F(PollerTest, SaysWhichIsReadyUntilItIsDrained) {
  ASSERT_TRUE(poller_.Add(event_.fd(), 77).ok());
  EXPECT_EQ(Wait(0), 0u);
  event_.Signal();
  event_.Signal();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Wait(10), 1u);
    EXPECT_EQ(ready_[0].tag, 77u);
    EXPECT_TRUE(ready_[0].readable);
    EXPECT_FALSE(ready_[0].writable);
  }
  event_.Drain();
  EXPECT_EQ(Wait(0), 0u);
}

TEST_F(PollerTest, NeverWakesBeforeTheTime) {
  for (const double seconds : {0.0002, 0.0017, 0.02}) {
    const double start = MonotonicSeconds();
    EXPECT_EQ(Wait(seconds), 0u);
    EXPECT_GE(MonotonicSeconds() - start, seconds * 0.999);
  }
}

TEST_F(PollerTest, InfinityWaitsForTheSignalOfAnotherThread) {
  ASSERT_TRUE(poller_.Add(event_.fd(), 1).ok());
  std::thread signaller([this] { event_.Signal(); });
  EXPECT_EQ(Wait(std::numeric_limits<double>::infinity()), 1u);
  signaller.join();
}

TEST_F(PollerTest, ForgetsWhatIsRemoved) {
  ASSERT_TRUE(poller_.Add(event_.fd(), 1).ok());
  event_.Signal();
  poller_.Remove(event_.fd());
  EXPECT_EQ(Wait(0), 0u);
}

TEST_F(PollerTest, ReportsRoomToWriteOnlyWhenAsked) {
  auto [a, b] = UnixPair().TakeValue();
  ASSERT_TRUE(poller_.Add(a.fd(), 1).ok());
  EXPECT_EQ(Wait(0), 0u);
  ASSERT_TRUE(poller_.Modify(a.fd(), 2, Poller::Interest::kReadWrite).ok());
  ASSERT_EQ(Wait(0), 1u);
  EXPECT_EQ(ready_[0].tag, 2u);
  EXPECT_TRUE(ready_[0].writable);
  EXPECT_FALSE(ready_[0].readable);
}

TEST_F(PollerTest, AHangUpIsReadable) {
  auto [a, b] = UnixPair().TakeValue();
  ASSERT_TRUE(poller_.Add(a.fd(), 1).ok());
  {
    const ByteStream closing = std::move(b);
  }
  ASSERT_EQ(Wait(10), 1u);
  EXPECT_TRUE(ready_[0].readable);
}

TEST_F(PollerTest, MoreThanFitsComesLater) {
  for (uint64_t tag = 0; tag < 4; ++tag) {
    // Several epoll entries for one eventfd need several descriptors.
    ASSERT_TRUE(poller_.Add(dup(event_.fd()), tag).ok());
  }
  event_.Signal();
  EXPECT_EQ(*poller_.Wait(0, std::span(ready_).first(3)), 3u);
  EXPECT_GE(*poller_.Wait(0, std::span(ready_).first(3)), 1u);
}

TEST_F(PollerTest, ASignalEndsTheWait) {
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = [](int) {};
  sigaction(SIGALRM, &action, &before);
  const itimerval timer{{0, 0}, {0, 20'000}};
  setitimer(ITIMER_REAL, &timer, nullptr);
  const double start = MonotonicSeconds();
  EXPECT_EQ(Wait(60), 0u);
  EXPECT_LT(MonotonicSeconds() - start, 30);
  sigaction(SIGALRM, &before, nullptr);
}

TEST_F(PollerTest, RefusesWhatIsNoDescriptor) {
  EXPECT_EQ(poller_.Add(-1, 0).code(), StatusCode::kSystem);
  EXPECT_EQ(poller_.Modify(event_.fd(), 0, Poller::Interest::kRead).code(), StatusCode::kSystem);
}

}  // namespace
}  // namespace horoscale
