// hs_init, hs_shutdown and fork: what they leave behind, and what may be called afterwards.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "unit/capi/job.h"

namespace horoscale {
namespace {

using testing::Call;
using testing::kDeadlineSeconds;
using testing::Meeting;
using testing::RunRanks;
using testing::VectorRequest;

struct Footprint {
  int64_t descriptors;
  int64_t threads;
  int64_t mappings;
};

bool HaveSameResources(const Footprint& a, const Footprint& b) {
  return a.descriptors == b.descriptors && a.threads == b.threads;
}

int64_t CountEntries(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::distance(begin(entries), end(entries));
}

Footprint Measure() {
  std::ifstream maps("/proc/self/maps");
  int64_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return {CountEntries("/proc/self/fd"), CountEntries("/proc/self/task"), lines};
}

// The footprint once everything that ended is gone: the kernel lists a thread slightly longer than
// join() waits for it.
Footprint MeasureSettled(const std::function<bool(const Footprint&)>& settled) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(kDeadlineSeconds);
  Footprint now = Measure();
  while (!settled(now) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    now = Measure();
  }
  return now;
}

// The number of threads of this process before it has a runtime. ThreadSanitizer starts a thread of
// its own along with the first one.
int64_t ThreadsWithoutRuntime() {
  std::filesystem::path task;
  std::thread([&task] { task = "/proc/self/task/" + std::to_string(gettid()); }).join();
  const auto gone = [&task](const Footprint&) { return !std::filesystem::exists(task); };
  MeasureSettled(gone);
  return Measure().threads;
}

constexpr int kCycles = 40;

// What each call of `cycle` leaves behind. The first calls may fill caches that are kept.
void ExpectNothingLeftBehind(const std::function<void()>& cycle) {
  const int64_t threads_at_first = ThreadsWithoutRuntime();
  for (int i = 0; i < 3; ++i) cycle();
  const Footprint before =
      MeasureSettled([&](const Footprint& now) { return now.threads == threads_at_first; });
  for (int i = 3; i < 3 + kCycles; ++i) cycle();
  const Footprint after =
      MeasureSettled([&](const Footprint& now) { return HaveSameResources(now, before); });
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_LT(after.mappings, before.mappings + kCycles);  // allocator mappings come and go
}

hs_init_options Alone() {
  hs_init_options options = {};
  options.struct_size = sizeof options;
  options.rank = 0;
  options.size = 1;
  options.serve_rendezvous = -1;
  return options;
}

TEST(Lifetime, InitAndShutdownOfOneRankLeaveNothingBehind) {
  ExpectNothingLeftBehind([] {
    const hs_init_options options = Alone();
    hs_runtime* runtime = nullptr;
    ASSERT_EQ(hs_init(&options, &runtime), HS_OK) << hs_error()->message;
    std::vector<float> data(100);
    VectorRequest call(HS_ALLREDUCE, data);
    EXPECT_EQ(Call(runtime, call.request), HS_OK);
    EXPECT_EQ(hs_shutdown(runtime), HS_OK);
    hs_runtime_free(runtime);
  });
}

TEST(Lifetime, InitAndShutdownOfTwoRanksLeaveNothingBehind) {
  ExpectNothingLeftBehind([] {
    const Meeting meeting;
    RunRanks(meeting, 2, [](int, hs_runtime* runtime) {
      std::vector<float> data(100'000);
      VectorRequest call(HS_ALLREDUCE, data);
      EXPECT_EQ(Call(runtime, call.request), HS_OK) << hs_error()->message;
      EXPECT_EQ(hs_shutdown(runtime), HS_OK);
    });
  });
}

// The timeout of hs_init(), during this object's lifetime.
class StartTimeout {
 public:
  explicit StartTimeout(const char* seconds) { setenv("HOROSCALE_START_TIMEOUT", seconds, 1); }
  ~StartTimeout() { unsetenv("HOROSCALE_START_TIMEOUT"); }
};

TEST(Lifetime, AnInitThatFailsLeavesNothingBehind) {
  const StartTimeout timeout("0.01");
  ExpectNothingLeftBehind([] {
    const Meeting meeting;
    const hs_init_options options = meeting.Options(1, 3);
    hs_runtime* runtime = nullptr;
    // Usually HS_TIMEOUT; on a busy machine the store itself may not have answered by then.
    ASSERT_NE(hs_init(&options, &runtime), HS_OK);
    EXPECT_EQ(runtime, nullptr);
  });
}

TEST(Lifetime, AnInitThatWaitedInVainNamesWhoDidNotCome) {
  const StartTimeout timeout("2");
  const Meeting meeting;
  const hs_init_options options = meeting.Options(1, 3);
  hs_runtime* runtime = nullptr;
  ASSERT_EQ(hs_init(&options, &runtime), HS_TIMEOUT);
  const hs_error_info& error = *hs_error();
  ASSERT_EQ(error.num_ranks, 2) << error.message;
  EXPECT_EQ(error.ranks[0], 0);
  EXPECT_EQ(error.ranks[1], 2);
}

TEST(Lifetime, OptionsThatMakeNoSenseAreRefused) {
  hs_runtime* runtime = nullptr;
  hs_init_options options = Alone();
  options.struct_size = 4;
  EXPECT_EQ(hs_init(&options, &runtime), HS_INVALID_ARGUMENT);
  options = Alone();
  options.rank = 3;
  EXPECT_EQ(hs_init(&options, &runtime), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_init(nullptr, nullptr), HS_INVALID_ARGUMENT);
}

TEST(Lifetime, AfterShutdownCallsSaySoAndHandlesStayValid) {
  const hs_init_options options = Alone();
  hs_runtime* runtime = nullptr;
  ASSERT_EQ(hs_init(&options, &runtime), HS_OK);
  std::vector<float> data(4, 1.0f);
  VectorRequest call(HS_ALLREDUCE, data);
  hs_handle* handle = nullptr;
  ASSERT_EQ(hs_enqueue(runtime, &call.request, &handle), HS_OK);
  ASSERT_EQ(hs_wait(handle, kDeadlineSeconds), HS_OK);
  EXPECT_EQ(hs_shutdown(runtime), HS_OK);
  EXPECT_EQ(hs_shutdown(runtime), HS_OK);
  EXPECT_EQ(Call(runtime, call.request), HS_SHUTDOWN);
  char* json = nullptr;
  EXPECT_EQ(hs_metrics(runtime, &json), HS_OK);
  EXPECT_NE(std::strstr(json, "\"process_sets\""), nullptr);
  hs_free(json);
  hs_runtime_free(runtime);
  EXPECT_EQ(hs_poll(handle), 1);
  EXPECT_EQ(hs_wait(handle, 0), HS_OK);
  hs_handle_free(handle);
  hs_handle_free(nullptr);
  hs_runtime_free(nullptr);
}

TEST(Lifetime, AForkedChildIsInert) {
  const hs_init_options options = Alone();
  hs_runtime* runtime = nullptr;
  ASSERT_EQ(hs_init(&options, &runtime), HS_OK);
  std::vector<float> data(4, 1.0f);
  VectorRequest call(HS_ALLREDUCE, data);
  const pid_t child = fork();
  if (child == 0) {
    const bool inert = Call(runtime, call.request) == HS_NOT_INITIALIZED &&
                       hs_shutdown(runtime) == HS_NOT_INITIALIZED;
    hs_runtime_free(runtime);
    _exit(inert ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Call(runtime, call.request), HS_OK);
  hs_runtime_free(runtime);
}

}  // namespace
}  // namespace horoscale
