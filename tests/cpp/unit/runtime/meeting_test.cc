// How ranks meet at a real store: the load on the store, and a successful attempt after a failed
// one.
#include "runtime/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <thread>
#include <vector>

#include "platform/descriptors.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;

constexpr double kLong = 60;
constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

// Threads are expensive under the sanitizers.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define HOROSCALE_FEW_THREADS
#endif
#endif
#ifdef HOROSCALE_FEW_THREADS
constexpr int kManyRanks = 128;
#else
constexpr int kManyRanks = 1024;
#endif

std::optional<EnvironmentVariable> NoVariable(std::string_view) { return std::nullopt; }

std::vector<Result<Meeting>> NotMet(int ranks) {
  std::vector<Result<Meeting>> met;
  for (int rank = 0; rank < ranks; ++rank) met.emplace_back(Status::Internal("did not run"));
  return met;
}

class MeetingTest : public ::testing::Test {
 protected:
  static StoreServerOptions Secret() {
    StoreServerOptions options;
    options.secret = kSecret;
    return options;
  }

  JobOptions Options(int rank, int size) const {
    JobOptions options;
    options.rank = rank;
    options.size = size;
    options.rendezvous = "127.0.0.1:" + std::to_string(server_->port());
    options.served = true;
    options.secret = kSecret;
    return options;
  }

  Result<Meeting> Meet(const JobOptions& options, const std::string& host,
                       double seconds = kLong) const {
    return MeetOverStore(options, Config(), NoVariable, host, Deadline::After(seconds));
  }

  std::unique_ptr<StoreServer> server_ = StoreServer::Start(Secret()).TakeValue();
};

// Ranks are threads here: each has a socket, one more for its neighbors, and one at the store.
TEST_F(MeetingTest, AThousandRanksCostTheStoreTwoRequestsEach) {
  constexpr int kRanksOfHost = 8;
  const int ranks = kManyRanks;
  RaiseDescriptorLimit();
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 4U * static_cast<unsigned>(ranks)) {
    GTEST_SKIP() << "this process may have " << limit.rlim_cur << " descriptors only";
  }
  const uint64_t before = server_->requests();
  std::vector<Result<Meeting>> met = NotMet(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string host = "host" + std::to_string(rank / kRanksOfHost);
      met[static_cast<size_t>(rank)] = Meet(Options(rank, ranks), host);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server_->requests() - before, 2U * static_cast<unsigned>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const Result<Meeting>& meeting = met[static_cast<size_t>(rank)];
    ASSERT_TRUE(meeting.ok()) << rank << ": " << meeting.status().message();
    ASSERT_EQ(meeting->hosts.size(), static_cast<size_t>(ranks));
    EXPECT_EQ(meeting->hosts, met[0]->hosts);
    EXPECT_TRUE(meeting->on_loopback);
    EXPECT_EQ(TopologyOf(rank, meeting->hosts).local_rank, rank % kRanksOfHost);
  }
}

TEST_F(MeetingTest, ARankThatFailedAloneMeetsTheOthersInItsNextAttempt) {
  Result<Meeting> first = Status::Internal("did not run");
  std::thread other([&] { first = Meet(Options(0, 2), "host"); });
  JobOptions wrong = Options(1, 2);
  wrong.rank = 7;
  EXPECT_EQ(Meet(wrong, "host").status().code(), StatusCode::kInvalidArgument);
  const auto second = Meet(Options(1, 2), "host");
  other.join();
  EXPECT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE(first.ok()) << first.status().message();
}

TEST_F(MeetingTest, RanksThatDidNotMeetInTimeMeetInTheirNextAttempt) {
  const auto alone = Meet(Options(0, 2), "host", 0.05);
  EXPECT_EQ(alone.status().code(), StatusCode::kTimeout);
  EXPECT_EQ(alone.status().detail().ranks, std::vector<int>{1});
  const auto late = Meet(Options(1, 2), "host");
  EXPECT_THAT(late.status().message(), HasSubstr("the first to fail was rank 0: rank 1 of 2"));
  Result<Meeting> first = Status::Internal("did not run");
  std::thread other([&] { first = Meet(Options(0, 2), "host"); });
  const auto second = Meet(Options(1, 2), "host");
  other.join();
  EXPECT_TRUE(first.ok()) << first.status().message();
  EXPECT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(first->store->prefix(), second->store->prefix());
}

TEST_F(MeetingTest, JobsOfDifferentRanksMeetSideBySide) {
  std::vector<Result<Meeting>> met = NotMet(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      JobOptions options = Options(rank, 4);
      options.ranks = rank < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3};
      met[static_cast<size_t>(rank)] = Meet(options, "host");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& meeting : met) ASSERT_TRUE(meeting.ok()) << meeting.status().message();
  EXPECT_EQ(met[0]->store->prefix(), met[1]->store->prefix());
  EXPECT_NE(met[0]->store->prefix(), met[2]->store->prefix());
  EXPECT_EQ(met[0]->identity.rank, 1);
}

}  // namespace
}  // namespace horoscale
