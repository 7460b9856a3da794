#include "platform/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "platform/random.h"
#include "platform/thread.h"
#include "platform/unix_socket.h"
#include "platform/wait.h"

namespace horoscale {
namespace {

TEST(ProcessTest, PidFdBecomesReadableWhenTheProcessEnds) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  Result<UniqueFd> pidfd = OpenPidFd(child);
  ASSERT_TRUE(pidfd.ok()) << pidfd.status().message();
  EXPECT_NE(fcntl(pidfd->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(WaitForDescriptor(pidfd->get(), POLLIN, Deadline::After(0)).code(),
            StatusCode::kTimeout);
  kill(child, SIGKILL);
  EXPECT_TRUE(WaitForDescriptor(pidfd->get(), POLLIN, Deadline::After(30)).ok());
  waitpid(child, nullptr, 0);
  EXPECT_EQ(OpenPidFd(child).status().code(), StatusCode::kSystem);
}

TEST(ProcessTest, HostIdentityIsStableAndTheUsersWordCounts) {
  EXPECT_EQ(HostIdentity(std::nullopt), HostIdentity(std::nullopt));
  EXPECT_NE(HostIdentity(std::nullopt).find('/'), std::string::npos);
  EXPECT_EQ(HostIdentity("node7"), "node7");
}

TEST(ProcessTest, KnowsThePeerOfAUnixSocket) {
  auto [a, b] = UnixPair().TakeValue();
  const Result<PeerCredentials> peer = GetPeerCredentials(a);
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, getuid());
}

TEST(RandomTest, FillsEverythingAndNeverRepeats) {
  std::array<std::byte, 1000> first{};
  std::array<std::byte, 1000> second{};
  ASSERT_TRUE(FillRandom(first).ok());
  ASSERT_TRUE(FillRandom(second).ok());
  EXPECT_NE(first, second);
  const std::array<std::byte, 100> zeros{};
  EXPECT_FALSE(std::equal(zeros.begin(), zeros.end(), first.end() - 100));
  EXPECT_TRUE(FillRandom({}).ok());
}

TEST(ThreadTest, RunsWithAllSignalsBlockedAndJoins) {
  bool ran = false;
  sigset_t blocked;
  Result<Thread> thread = Thread::Start("a name beyond fifteen bytes", [&] {
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    ran = true;
  });
  ASSERT_TRUE(thread.ok());
  EXPECT_TRUE(thread->joinable());
  thread->Join();
  EXPECT_FALSE(thread->joinable());
  EXPECT_TRUE(ran);
  EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGINT), 0);
}

}  // namespace
}  // namespace horoscale
