// Engine: determines which thread drives the runtime, and how the other threads sleep.
//
// One owner at a time drives it: the progress thread, or a thread that waits for an operation and
// executes it itself instead of waiting for another thread. The rules:
//   * A waiter takes the engine if it is free; otherwise it requests it from the progress thread.
//     While any thread waits, the progress thread stays parked.
//   * Waiters that don't own the engine sleep on one condition variable. Completions wake them, and
//     so does an owner that leaves.
//   * An owner that leaves wakes the progress thread if work remains and there are no waiters.
//   * An owner with nothing to do spins briefly, yields (idle_policy.h), then arms the transport's
//     doorbell and sleeps in the transport. Owners never sleep elsewhere.
//   * If the progress thread is woken for little work, it sleeps briefly while more is enqueued,
//     because fused operations cost less. A waiter can take the engine meanwhile.
//   * When nothing is pending, the progress thread parks on a process-local condition variable. It
//     polls the transport twice a second, and immediately if the transport reports that a rank may
//     be lost and others must be notified.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/idle_policy.h"
#include "transport/transport.h"

namespace horoscale {

class Engine {
 public:
  // The interface to the runtime that the engine drives.
  class Work {
   public:
    virtual ~Work() = default;
    // Makes progress by at most one chunk per set; returns whether there was any. Called by the
    // owner.
    virtual bool Step() = 0;
    // Whether operations are pending or enqueued, so that the engine must continue. Any thread.
    virtual bool HasWork() const = 0;
    // The number of enqueued operations, if nothing else is pending and they are so small that they
    // should briefly wait for more; otherwise 0. Any thread.
    virtual size_t Gathering() const { return 0; }
    // How long the owner may sleep; limited if running operations can complete without waking the
    // transport. Called by the owner.
    virtual double MaxSleepSeconds() { return std::numeric_limits<double>::infinity(); }
    // Completion callbacks that Step() has collected, to be run without owning the engine. Called
    // by the owner.
    virtual std::vector<std::function<void()>> TakeCallbacks() = 0;
    virtual bool HasCallbacks() const = 0;
  };

  Engine(Work& work, Transport& transport);
  ~Engine();  // stops

  void Start();

  // An operation was enqueued that no thread will wait for immediately. Any thread.
  void NotifyInput();

  // The same for an operation that needs one turn. If the engine is free, this thread makes the
  // turn itself, which is cheaper than waking the progress thread. Runs no callbacks, because the
  // caller may hold locks. Any thread.
  void TurnOrNotify();

  // Wakes the waiters, because an operation is done. Called by the owner.
  void NotifyDone();

  // Drives or sleeps until `done` or the monotonic time `deadline`; returns the last value of done.
  // Any thread that is not inside a callback.
  bool WaitFor(const std::function<bool()>& done, double deadline);

  // The number of threads in WaitFor(). One of them drives, if there are any; otherwise the
  // progress thread does.
  int waiting() const { return waiting_.load(); }

  // Makes one turn, if the engine is free; returns whether there was progress. For callers that
  // drive the engine themselves, without Start().
  bool Turn();

  // Ends the progress thread and takes the engine permanently: afterwards no thread drives it. Call
  // once; any thread, also from a callback.
  void Stop();

 private:
  void ThreadMain();
  // Called by the progress thread: waits briefly for further operations.
  void Gather(std::unique_lock<std::mutex>& lock);
  // Requests a poll of the transport. Any thread.
  void Look();
  // Takes the engine if it is free.
  bool Own();
  // Drives as the owner: for a waiter until *done or the deadline, for the progress thread (done is
  // null) until there is no work or a thread waits. Returns whether the thread still owns the
  // engine.
  bool Drive(const std::function<bool()>* done, double deadline);
  bool RunCallbacks(bool is_thread, std::vector<std::function<void()>> callbacks);
  // Called when there is no progress: yields, or sleeps until there may be.
  void Idle(bool is_thread, double now, double deadline);
  void Leave();
  void LeaveLocked();  // mutex_ is held

  Work& work_;
  Transport& transport_;
  std::thread thread_;
  bool has_thread_ = false;  // since Start()

  std::mutex mutex_;
  std::condition_variable waiters_cv_;  // completion, or the engine is free
  std::condition_variable parked_cv_;   // wakes the progress thread
  bool owned_ = false;                  // guarded by mutex_
  // These pair with HasWork() and the operations' done flags: a thread that goes to sleep first
  // sets its flag and then checks again; a thread with news first publishes them and then checks
  // the flag (all seq_cst).
  std::atomic<int> waiting_{0};
  std::atomic<bool> parked_{false};
  std::atomic<bool> look_{false};    // the transport must be polled
  std::atomic<bool> asleep_{false};  // the owner is in transport_.Sleep(), or about to
  std::atomic<bool> stop_{false};
  // By the owner.
  bool owner_waits_ = false;  // it is a waiter
  IdlePolicy idle_;
};

}  // namespace horoscale
