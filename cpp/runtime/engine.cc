#include "runtime/engine.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "platform/clock.h"

namespace horoscale {
namespace {

// The transport reports lost ranks by itself; this limits the delay of stall reports.
constexpr double kSleepSeconds = 0.5;

// A loop enqueues its next operation within this time, to which timers add about as much again.
constexpr double kGatherSeconds = 50e-6;
constexpr double kMostGatherSeconds = 500e-6;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Engine::Engine(Work& work, Transport& transport) : work_(work), transport_(transport) {}

Engine::~Engine() {
  Stop();
  if (thread_.joinable()) thread_.join();
}

void Engine::Start() {
  transport_.CallOnEnd([this] { Look(); });
  has_thread_ = true;
  thread_ = std::thread([this] { ThreadMain(); });
}

void Engine::NotifyInput() {
  if (asleep_.load()) {
    transport_.Wake();
  } else if (parked_.load()) {
    std::lock_guard lock(mutex_);
    if (!owned_) parked_cv_.notify_one();
  }
}

void Engine::TurnOrNotify() {
  // Without a thread, the caller makes all turns.
  if (!has_thread_ || !Own()) return NotifyInput();
  (void)work_.Step();
  const bool has_callbacks = work_.HasCallbacks();
  Leave();
  if (has_callbacks) {
    Look();
  } else if (waiting_.load() == 0 && work_.HasWork()) {
    NotifyInput();
  }
}

void Engine::Look() {
  look_.store(true);
  NotifyInput();
}

void Engine::NotifyDone() {
  // A waiter that drives sees the completion itself.
  if (waiting_.load() == (owner_waits_ ? 1 : 0)) return;
  std::lock_guard lock(mutex_);
  waiters_cv_.notify_all();
}

bool Engine::WaitFor(const std::function<bool()>& done, double deadline) {
  if (done()) return true;
  waiting_.fetch_add(1);
  bool is_done = false;
  std::unique_lock lock(mutex_);
  while (!(is_done = done()) && MonotonicSeconds() < deadline) {
    if (!owned_ && !stop_.load()) {
      owned_ = true;
      lock.unlock();
      const bool owns = Drive(&done, deadline);
      lock.lock();
      if (owns) LeaveLocked();
      continue;
    }
    if (asleep_.load()) transport_.Wake();  // the progress thread hands over when someone waits
    const double left = std::clamp(deadline - MonotonicSeconds(), 0.0, kSleepSeconds);
    waiters_cv_.wait_for(lock, std::chrono::duration<double>(left));
  }
  lock.unlock();
  // A turn may have left callbacks for the progress thread, which could not drive meanwhile.
  if (waiting_.fetch_sub(1) == 1 && (work_.HasWork() || look_.load())) NotifyInput();
  return is_done;
}

void Engine::ThreadMain() {
  std::unique_lock lock(mutex_);
  while (!stop_.load()) {
    Gather(lock);
    if (!owned_ && waiting_.load() == 0 && !stop_.load()) {
      owned_ = true;
      lock.unlock();
      look_.store(false);
      const bool owns = Drive(nullptr, 0);
      lock.lock();
      if (owns) LeaveLocked();
    }
    parked_.store(true);
    const bool needed = !owned_ && waiting_.load() == 0 && (work_.HasWork() || look_.load());
    if (!needed && !stop_.load()) {
      parked_cv_.wait_for(lock, std::chrono::duration<double>(kSleepSeconds));
    }
    parked_.store(false);
  }
}

void Engine::Gather(std::unique_lock<std::mutex>& lock) {
  const double until = MonotonicSeconds() + kMostGatherSeconds;
  size_t before = 0;
  for (;;) {
    const size_t count = work_.Gathering();
    const bool is_wanted = !owned_ && waiting_.load() == 0 && !stop_.load();
    if (count <= before || !is_wanted || MonotonicSeconds() >= until) return;
    before = count;
    // Not marked as parked, so that enqueuing more needs no system call.
    parked_cv_.wait_for(lock, std::chrono::duration<double>(kGatherSeconds));
  }
}

bool Engine::Drive(const std::function<bool()>* done, double deadline) {
  const bool is_thread = done == nullptr;
  owner_waits_ = !is_thread;
  idle_.Begin();
  for (;;) {
    const bool moved = work_.Step();
    if (auto callbacks = work_.TakeCallbacks(); !callbacks.empty()) {
      if (!RunCallbacks(is_thread, std::move(callbacks))) return false;
      continue;
    }
    if (stop_.load()) break;
    if (is_thread ? waiting_.load() > 0 || !work_.HasWork() : (*done)()) break;
    if (moved) {
      idle_.Begin();
      continue;
    }
    if (idle_.PollsAgain()) {
      Pause();
      continue;
    }
    const double now = MonotonicSeconds();
    if (!is_thread && now >= deadline) break;
    Idle(is_thread, now, deadline);
  }
  return true;
}

bool Engine::RunCallbacks(bool is_thread, std::vector<std::function<void()>> callbacks) {
  Leave();
  for (const auto& callback : callbacks) callback();
  std::lock_guard lock(mutex_);
  if (owned_ || stop_.load() || (is_thread && waiting_.load() > 0)) return false;
  owned_ = true;
  owner_waits_ = !is_thread;
  return true;
}

bool Engine::Own() {
  std::lock_guard lock(mutex_);
  if (owned_ || stop_.load()) return false;
  return owned_ = true;
}

bool Engine::Turn() {
  if (!Own()) return false;
  const bool moved = work_.Step();
  const auto callbacks = work_.TakeCallbacks();
  Leave();
  for (const auto& callback : callbacks) callback();
  return moved || !callbacks.empty();
}

void Engine::Idle(bool is_thread, double now, double deadline) {
  if (idle_.Yields(now)) {
    sched_yield();
    idle_.OnYielded(MonotonicSeconds() - now);
    return;
  }
  transport_.Arm();
  asleep_.store(true);
  const bool wanted = stop_.load() || (is_thread && waiting_.load() > 0);
  if (!wanted && !work_.Step()) {
    const double most = std::min(kSleepSeconds, work_.MaxSleepSeconds());
    transport_.Sleep(is_thread ? most : std::min(deadline - now, most));
  }
  asleep_.store(false);
  transport_.Disarm();
  idle_.Begin();
}

void Engine::Leave() {
  std::lock_guard lock(mutex_);
  LeaveLocked();
}

void Engine::LeaveLocked() {
  owned_ = owner_waits_ = false;
  waiters_cv_.notify_all();
}

void Engine::Stop() {
  if (stop_.exchange(true)) return;
  {
    std::lock_guard lock(mutex_);
    parked_cv_.notify_all();
  }
  transport_.Wake();
  // In a callback of the progress thread: it ends when the callback returns.
  const bool is_own = thread_.get_id() == std::this_thread::get_id();
  if (thread_.joinable() && !is_own) thread_.join();
  std::unique_lock lock(mutex_);
  while (owned_) {
    transport_.Wake();
    waiters_cv_.wait_for(lock, std::chrono::duration<double>(kSleepSeconds));
  }
  owned_ = true;
}

}  // namespace horoscale
