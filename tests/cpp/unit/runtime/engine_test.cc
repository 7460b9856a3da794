// The engine sleeps no longer than its work allows, since operations that MPI runs wake nobody.
#include "runtime/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "platform/clock.h"

namespace horoscale {
namespace {

// Records the requested sleep times, and returns at once.
class SleepyTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void Send(int, const FrameHeader&, std::span<const std::byte>) override {}
  bool Poll(TransportSink&) override { return false; }
  bool HasUnsent() const override { return false; }
  Result<std::unique_ptr<Exchange>> Open(ChannelId, std::span<const int>) override {
    return Status(StatusCode::kUnimplemented, "no channels");
  }
  void Forget(ChannelId) override {}
  void Arm() override {}
  void Sleep(double seconds) override { sleeps.push_back(seconds); }
  void Disarm() override {}
  void Wake() override {}
  Result<std::byte*> AllocateShared(size_t) override {
    return Status(StatusCode::kUnimplemented, "no memory");
  }
  void FreeShared(std::byte*) override {}
  int64_t SharedOffset(const std::byte*, size_t) const override { return -1; }
  std::byte* SharedAddress(int, int64_t, size_t) const override { return nullptr; }
  TransportCounters counters() const override { return {}; }
  void Close(std::span<const std::byte>, double) override {}
  void CallOnEnd(std::function<void()> given) override { look = std::move(given); }

  std::vector<double> sleeps;
  std::function<void()> look;
};

class StuckWork final : public Engine::Work {
 public:
  explicit StuckWork(double most) : most_(most) {}
  bool Step() override { return false; }
  bool HasWork() const override { return true; }
  double MaxSleepSeconds() override { return most_; }
  std::vector<std::function<void()>> TakeCallbacks() override { return {}; }
  bool HasCallbacks() const override { return false; }

 private:
  const double most_;
};

class NoWork final : public Engine::Work {
 public:
  bool Step() override {
    ++steps;
    return false;
  }
  bool HasWork() const override { return false; }
  std::vector<std::function<void()>> TakeCallbacks() override { return {}; }
  bool HasCallbacks() const override { return false; }

  std::atomic<int> steps{0};
};

// Each Step() leaves a callback; both record their thread.
class WorkWithCallbacks final : public Engine::Work {
 public:
  bool Step() override {
    if (!wanted.exchange(false)) return false;
    stepped_by = std::this_thread::get_id();
    callbacks_.push_back([this] {
      called_by = std::this_thread::get_id();
      called.store(true);
    });
    return true;
  }
  bool HasWork() const override { return wanted.load(); }
  std::vector<std::function<void()>> TakeCallbacks() override {
    return std::exchange(callbacks_, {});
  }
  bool HasCallbacks() const override { return !callbacks_.empty(); }

  std::atomic<bool> wanted{false};
  std::atomic<bool> called{false};
  std::thread::id stepped_by;
  std::thread::id called_by;

 private:
  std::vector<std::function<void()>> callbacks_;
};

// Each look finds one more operation, up to `most`.
class GrowingWork final : public Engine::Work {
 public:
  explicit GrowingWork(size_t most) : most_(most) {}
  bool Step() override {
    size_t none = 0;
    looks_before_step.compare_exchange_strong(none, looks_);
    return false;
  }
  bool HasWork() const override { return looks_before_step.load() == 0; }
  size_t Gathering() const override { return std::min(++looks_, most_); }
  std::vector<std::function<void()>> TakeCallbacks() override { return {}; }
  bool HasCallbacks() const override { return false; }

  std::atomic<size_t> looks_before_step{0};

 private:
  const size_t most_;
  mutable std::atomic<size_t> looks_{0};
};

double FirstSleep(double most) {
  SleepyTransport transport;
  StuckWork work(most);
  Engine engine(work, transport);
  engine.WaitFor([&] { return !transport.sleeps.empty(); }, MonotonicSeconds() + 60);
  engine.Stop();
  return transport.sleeps.empty() ? -1 : transport.sleeps.front();
}

TEST(EngineTest, SleepsNoLongerThanItsWorkAllows) {
  EXPECT_EQ(FirstSleep(1e-3), 1e-3);
  EXPECT_EQ(FirstSleep(std::numeric_limits<double>::infinity()), 0.5);
}

TEST(EngineTest, LetsWhatIsEnqueuedComeTogetherAsLongAsMoreComes) {
  // The last look finds nothing new in the first case; in the second there is always more.
  for (const size_t most : {size_t{1}, std::numeric_limits<size_t>::max()}) {
    SleepyTransport transport;
    GrowingWork work(most);
    Engine engine(work, transport);
    engine.Start();
    const double deadline = MonotonicSeconds() + 60;
    while (work.HasWork() && MonotonicSeconds() < deadline) std::this_thread::yield();
    engine.Stop();
    EXPECT_GE(work.looks_before_step.load(), 2u);
  }
}

// On its own it polls twice a second.
TEST(EngineTest, LooksAtTheTransportWhenThatSaysSo) {
  constexpr int kLooks = 50;
  SleepyTransport transport;
  NoWork work;
  Engine engine(work, transport);
  engine.Start();
  const double before = MonotonicSeconds();
  for (int i = 0; i < kLooks; ++i) {
    const int steps = work.steps.load();
    transport.look();
    while (work.steps.load() == steps && MonotonicSeconds() < before + 60) {
      std::this_thread::yield();
    }
  }
  EXPECT_LT(MonotonicSeconds() - before, kLooks * 0.5 / 4);
  engine.Stop();
}

// The progress thread may hold the engine at this moment.
TEST(EngineTest, AShortTurnIsMadeByItsCallerButNotItsCallbacks) {
  SleepyTransport transport;
  WorkWithCallbacks work;
  Engine engine(work, transport);
  engine.Start();
  const double deadline = MonotonicSeconds() + 60;
  bool by_caller = false;
  while (!by_caller && MonotonicSeconds() < deadline) {
    work.called.store(false);
    work.wanted.store(true);
    engine.TurnOrNotify();
    while (!work.called.load() && MonotonicSeconds() < deadline) std::this_thread::yield();
    ASSERT_TRUE(work.called.load());
    EXPECT_NE(work.called_by, std::this_thread::get_id());
    by_caller = work.stepped_by == std::this_thread::get_id();
  }
  EXPECT_TRUE(by_caller);
  engine.Stop();
}

}  // namespace
}  // namespace horoscale
