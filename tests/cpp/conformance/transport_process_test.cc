// The shared memory transport between real processes: cases that threads of one process can't
// cover.

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "conformance/transport_fixture.h"
#include "platform/clock.h"
#include "platform/process.h"
#include "platform/wait.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"

namespace horoscale {
namespace {

constexpr char kSecret[] = "secret";
constexpr double kNoticed = 1.0;  // seconds until every survivor knows of a death

// In a rank's process: fails the test with this line.
void Check(bool condition, const std::string& what) {
  if (condition) return;
  fprintf(stderr, "rank process %d: %s\n", getpid(), what.c_str());
  _exit(1);
}

struct Pipe {
  Pipe() { Check(pipe(ends) == 0, "pipe"); }
  ~Pipe() {
    close(ends[0]);
    CloseWriter();
  }
  void CloseWriter() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }
  int ends[2];
};

// One process per rank; each runs the body and exits with status 0 if all its checks held.
class RankProcesses {
 public:
  using Body = std::function<void(Transport&)>;

  // Forks before the store's thread exists; the ranks learn its port through a pipe.
  RankProcesses(int size, const Body& body) {
    Pipe ports;
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) Run(rank, size, ports.ends[0], body);
      pids_.push_back(pid);
      pidfds_.push_back(OpenPidFd(pid).TakeValue());
    }
    StoreServerOptions options;
    options.secret = kSecret;
    store_ = StoreServer::Start(options).TakeValue();
    const uint16_t port = store_->port();
    for (int rank = 0; rank < size; ++rank) {
      Check(write(ports.ends[1], &port, sizeof(port)) == sizeof(port), "write");
    }
  }

  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL);
    }
    for (size_t rank = 0; rank < pids_.size(); ++rank) Wait(static_cast<int>(rank), kPatience);
  }

  void Kill(int rank) { kill(pids_[static_cast<size_t>(rank)], SIGKILL); }

  // The exit status, or -signal; -1000 if the rank doesn't end in time.
  int Wait(int rank, double seconds) {
    pid_t& pid = pids_[static_cast<size_t>(rank)];
    if (pid <= 0) return -1000;
    const int pidfd = pidfds_[static_cast<size_t>(rank)].get();
    if (!WaitForDescriptor(pidfd, POLLIN, Deadline::After(seconds)).ok()) return -1000;
    int status = 0;
    waitpid(pid, &status, 0);
    pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  [[noreturn]] static void Run(int rank, int size, int port_pipe, const Body& body) {
    uint16_t port;
    Check(read(port_pipe, &port, sizeof(port)) == sizeof(port), "no port");
    auto store = StoreClient::Connect("127.0.0.1", port, kSecret, kPatience);
    Check(store.ok(), store.status().message());
    auto transport = ShmTransport::Create(TestShmConfig(rank, size, kTiny), **store);
    Check(transport.ok(), transport.status().message());
    body(**transport);
    _exit(0);
  }

  std::vector<pid_t> pids_;
  std::vector<UniqueFd> pidfds_;
  std::unique_ptr<StoreServer> store_;
};

// Polls, and sleeps while idle, until the condition holds.
void SleepUntil(Transport& transport, Inbox& inbox, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::After(kPatience);
  while (!condition()) {
    Check(!deadline.Passed(), "waited too long");
    transport.Arm();
    if (!transport.Poll(inbox) && !condition()) transport.Sleep(deadline.SecondsLeft());
    transport.Disarm();
  }
}

void SendToAll(Transport& transport) {
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (rank != transport.rank()) transport.Send(rank, {FrameKind::kReport, {}}, Pattern(3, 1));
  }
}

TEST(TransportProcessTest, RanksExchangeRoundsAndFrames) {
  constexpr int kSize = 4;
  constexpr uint64_t kRounds = 200;
  RankProcesses ranks(kSize, [](Transport& transport) {
    Inbox inbox;
    const std::vector<int> members = {0, 1, 2, 3};
    auto exchange = transport.Open(kChannel, members).TakeValue();
    for (uint64_t round = 0; round < kRounds; ++round) {
      SleepUntil(transport, inbox, [&] { return exchange->Reserve(round) != nullptr; });
      const auto content = [round](uint32_t member) {
        return Pattern((round * 37 + member) % 4097, static_cast<uint32_t>(round + member));
      };
      PublishBytes(*exchange, round, content(exchange->self()));
      for (uint32_t m = 0; m < kSize; ++m) {
        SleepUntil(transport, inbox, [&] { return exchange->Peek(round, m) != nullptr; });
        const auto expected = content(m);
        Check(std::equal(expected.begin(), expected.end(), exchange->Peek(round, m)), "content");
      }
      exchange->Release(round);
    }
    const int next = (transport.rank() + 1) % kSize;
    transport.Send(next, {FrameKind::kPlan, {}}, Pattern(100'000, 1));
    const int before = (transport.rank() + kSize - 1) % kSize;
    SleepUntil(transport, inbox,
               [&] { return !inbox.frames[before].empty() && !transport.HasUnsent(); });
    Check(inbox.frames[before][0].payload == Pattern(100'000, 1), "frame");
    exchange.reset();
    transport.Close(Pattern(4, 4), kPatience);
  });
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.Wait(rank, 2 * kPatience), 0);
}

// Once all ranks have received each other's frames, rank 1 runs the given body, and is killed if
// `is_killed`; the others wait until they see its loss.
enum class Waiting { kAsleep, kBusy };
void LoseRankOne(Waiting waiting, const std::function<void(Transport&)>& rank_one, bool is_killed,
                 size_t frames_expected) {
  Pipe ready;
  RankProcesses ranks(3, [&](Transport& transport) {
    Inbox inbox;
    SendToAll(transport);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == transport.rank()) continue;
      SleepUntil(transport, inbox, [&] { return !inbox.frames[rank].empty(); });
    }
    Check(write(ready.ends[1], "r", 1) == 1, "write");
    if (transport.rank() == 1) {
      rank_one(transport);
      return;
    }
    const Deadline deadline = Deadline::After(kPatience);
    const auto lost = [&] {
      return std::any_of(inbox.lost.begin(), inbox.lost.end(),
                         [](const auto& one) { return one.first == 1; });
    };
    if (waiting == Waiting::kBusy) {
      while (!lost()) {
        Check(!deadline.Passed(), "the loss was not noticed");
        transport.Poll(inbox);
      }
    } else {
      SleepUntil(transport, inbox, lost);
    }
    Check(inbox.frames_when_lost[1] == frames_expected, "frames before the loss");
    Check(inbox.frames[1].size() == frames_expected, "frames after the loss");
  });
  char byte;
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(read(ready.ends[0], &byte, 1), 1);
  const double killed = MonotonicSeconds();
  if (is_killed) ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0, kPatience), 0);
  EXPECT_EQ(ranks.Wait(2, kPatience), 0);
  EXPECT_LT(MonotonicSeconds() - killed, kNoticed);
  ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(1, kPatience), -SIGKILL) << "it ended by itself";
}

void WaitToBeKilled(Transport&) {
  while (true) pause();
}

TEST(TransportProcessTest, SleepersNoticeAKilledPeer) {
  LoseRankOne(Waiting::kAsleep, WaitToBeKilled, true, 1);
}

TEST(TransportProcessTest, BusyRanksNoticeAKilledPeer) {
  LoseRankOne(Waiting::kBusy, WaitToBeKilled, true, 1);
}

// A data loader's worker inherits copies of all descriptors of the rank that forked it. It lives
// until the test closes the pipe.
void ForkWorker(Pipe& alive) {
  const pid_t pid = fork();
  Check(pid >= 0, "fork");
  if (pid > 0) return;
  alive.CloseWriter();
  char byte;
  [[maybe_unused]] ssize_t end = read(alive.ends[0], &byte, 1);
  _exit(0);
}

TEST(TransportProcessTest, AForkedWorkerDoesNotHideADeath) {
  Pipe alive;
  LoseRankOne(
      Waiting::kAsleep,
      [&](Transport& transport) {
        ForkWorker(alive);
        WaitToBeKilled(transport);
      },
      true, 1);
}

TEST(TransportProcessTest, AForkedWorkerDoesNotHideAGoodbye) {
  Pipe alive;
  LoseRankOne(
      Waiting::kAsleep,
      [&](Transport& transport) {
        ForkWorker(alive);
        transport.Close(Pattern(5, 5), kPatience);
        WaitToBeKilled(transport);
      },
      false, 2);
}

TEST(TransportProcessTest, NothingIsLeftInTheFileSystem) {
  Pipe ready;
  RankProcesses ranks(2, [&](Transport& transport) {
    Check(transport.AllocateShared(1000).ok(), "shared memory");
    Check(write(ready.ends[1], "r", 1) == 1, "write");
    WaitToBeKilled(transport);
  });
  char byte;
  for (int started = 0; started < 2; ++started) {
    ASSERT_EQ(read(ready.ends[0], &byte, 1), 1);
  }
  for (const int rank : {0, 1}) {
    ranks.Kill(rank);
    ranks.Wait(rank, kPatience);
  }
  if (!std::filesystem::exists("/dev/shm")) return;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_EQ(entry.path().filename().string().find("horoscale"), std::string::npos)
        << entry.path();
  }
}

}  // namespace
}  // namespace horoscale
