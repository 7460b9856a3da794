// Start-up of the shared memory transport. Ranks are threads here, and some misbehave.

#include "transport/shm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "platform/unix_socket.h"
#include "rendezvous/memory_store.h"
#include "support/overheard_store.h"
#include "support/start_together.h"
#include "transport/shm/link.h"
#include "transport/shm/shm_transport.h"

namespace horoscale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

constexpr double kPatience = 20;

ShmConfig Config(int rank, int size) {
  ShmConfig config;
  config.rank = rank;
  config.size = size;
  config.memory = {.banks = {.chunk_bytes = 4096, .banks = 4}, .ring_bytes = 1024};
  config.arena_bytes = Arena::kLeastBytes;
  config.mesh = {.ranks = {}, .key_prefix = "7/", .secret = "secret", .seconds = kPatience};
  for (int other = 0; other < size; ++other) config.mesh.ranks.push_back(other);
  return config;
}

// Starts all ranks at once; returns the status of each.
std::vector<Status> StartAll(Store& store, const std::vector<ShmConfig>& configs) {
  return StartTogether(configs.size(),
                       [&](size_t i) { return ShmTransport::Create(configs[i], store); });
}

TEST(MeshTest, AnotherUserIsKnownAndRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  auto listener = UnixListener::Create().TakeValue();
  std::byte byte{};
  const pid_t other = fork();
  if (other == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(1);
    auto stream = ConnectUnix(listener.name(), Deadline::After(kPatience));
    if (!stream.ok()) _exit(2);
    _exit(stream->ReceiveAll({&byte, 1}, Deadline::After(kPatience)).ok() ? 0 : 3);
  }
  ASSERT_GT(other, 0);
  auto stream = listener.Accept(Deadline::After(kPatience));
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  const Status status = CheckSameUser(*stream);
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(status.message(), HasSubstr("belongs to user 65534"));
  EXPECT_TRUE(stream->SendAll({&byte, 1}, Deadline::After(kPatience)).ok());
  int ended = -1;
  ASSERT_EQ(waitpid(other, &ended, 0), other);
  EXPECT_EQ(ended, 0);
}

TEST(MeshTest, RanksOfOtherHostsAreNotWaitedFor) {
  MemoryStore store;
  std::vector<ShmConfig> configs = {Config(0, 4), Config(2, 4)};
  for (ShmConfig& config : configs) config.mesh.ranks = {0, 2};
  for (const Status& status : StartAll(store, configs)) EXPECT_TRUE(status.ok());
}

TEST(MeshTest, RanksThatDoNotComeAreNamed) {
  MemoryStore store;
  std::vector<ShmConfig> configs = {Config(0, 4), Config(2, 4)};
  for (ShmConfig& config : configs) config.mesh.seconds = 0.1;
  // Both wait for the timeout; one may outlast the other for a moment.
  for (const Status& status : StartAll(store, configs)) {
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_THAT(status.message(), HasSubstr("did not start within"));
    EXPECT_THAT(status.detail().ranks, IsSupersetOf({1, 3}));
  }
}

// Rank 1 of two publishes its address, and then does nothing.
class Silent {
 public:
  explicit Silent(Store& store)
      : thread_([&store] {
          const std::string name = "nowhere";
          (void)store.Gather({"7/shm/0", 1, 2, std::as_bytes(std::span(name))}, kPatience);
        }) {}
  ~Silent() { thread_.join(); }

 private:
  std::thread thread_;
};

TEST(MeshTest, AFailureIsExplainedBeforeOthersCanSeeIt) {
  MemoryStore memory;
  OverheardStore store(memory, "7/shm/0");
  auto published = store.value();
  const Silent other(memory);
  ShmConfig config = Config(0, 2);
  config.mesh.seconds = 1;
  std::string name;
  config.mesh.explain = [&](const Status& failure) {
    name = published.get();
    EXPECT_TRUE(ConnectUnix(name, Deadline::After(kPatience)).ok());
    return Status(failure.code(), failure.message() + ", explained");
  };
  const Status status = StartAll(store, {config})[0];
  EXPECT_THAT(status.message(), HasSubstr("rank 1 did not connect"));
  EXPECT_THAT(status.message(), HasSubstr(", explained"));
  EXPECT_FALSE(ConnectUnix(name, Deadline::After(kPatience)).ok());
}

TEST(MeshTest, WhoLetsOthersInGivesUpWhenThereIsAReason) {
  MemoryStore store;
  const Silent other(store);
  ShmConfig config = Config(0, 2);
  int looks = 0;
  config.mesh.look = [&looks] {
    return ++looks < 2 ? Status() : Status(StatusCode::kSystem, "another rank failed");
  };
  const Status status = StartAll(store, {config})[0];
  EXPECT_EQ(status.code(), StatusCode::kSystem) << "and not kTimeout, much later";
  EXPECT_THAT(status.message(), HasSubstr("another rank failed"));
}

TEST(MeshTest, ARankThatSaysWhereItListensAndThenDoesNotConnectIsNamed) {
  MemoryStore store;
  const Silent other(store);
  ShmConfig config = Config(0, 2);
  config.mesh.seconds = 1;
  const Status status = StartAll(store, {config})[0];
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 did not connect"));
}

TEST(MeshTest, AWrongSecretIsRefused) {
  MemoryStore store;
  std::vector<ShmConfig> configs = {Config(0, 2), Config(1, 2)};
  configs[0].mesh.seconds = 0.5;
  configs[1].mesh.secret = "guess";
  const std::vector<Status> statuses = StartAll(store, configs);
  EXPECT_EQ(statuses[0].code(), StatusCode::kTimeout) << "a stranger is no reason to give up";
  EXPECT_EQ(statuses[1].code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(statuses[1].message(), HasSubstr("rank 1 can't connect to rank 0"));
}

TEST(MeshTest, DifferentSettingsAreSaid) {
  MemoryStore store;
  std::vector<ShmConfig> configs = {Config(0, 2), Config(1, 2)};
  configs[1].memory.ring_bytes = 2048;
  for (const Status& status : StartAll(store, configs)) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rings of 1024"), HasSubstr("rings of 2048")));
  }
}

// Connects to rank 0 as soon as it can be found, in every way open to a stranger, and stays.
TEST(MeshTest, StrangersDoNoHarm) {
  MemoryStore memory;
  OverheardStore store(memory, "7/shm/0");
  auto published = store.value();
  std::vector<ByteStream> strangers;
  const auto intrude = [&] {
    const std::string name = published.get();
    const Deadline deadline = Deadline::After(kPatience);
    for (int i = 0; i < 3; ++i) {
      strangers.push_back(ConnectUnix(name, deadline).TakeValue());  // and sends nothing
      ByteStream garbage = ConnectUnix(name, deadline).TakeValue();
      const std::vector<std::byte> noise(1000, std::byte{0x5a});
      ASSERT_TRUE(garbage.SendAll(noise, deadline).ok());
      strangers.push_back(std::move(garbage));
      ConnectUnix(name, deadline).TakeValue();  // and leaves
    }
  };
  std::thread intruder(intrude);
  std::vector<Status> early;
  std::thread first([&] { early = StartAll(store, {Config(0, 2)}); });
  intruder.join();
  const std::vector<Status> late = StartAll(store, {Config(1, 2)});
  first.join();
  EXPECT_TRUE(early[0].ok()) << early[0].message();
  EXPECT_TRUE(late[0].ok()) << late[0].message();
}

TEST(MeshTest, ManyRanksFindEachOther) {
  MemoryStore store;
  std::vector<ShmConfig> configs;
  for (int rank = 0; rank < 16; ++rank) configs.push_back(Config(rank, 16));
  for (const Status& status : StartAll(store, configs))
    EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace horoscale
