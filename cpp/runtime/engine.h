// Engine: who drives the runtime, and how everybody else sleeps.
//
// One owner at a time drives it: the progress thread, or a thread that waits for an operation and
// helps itself instead of waiting for another thread's turn. The rules:
//   * A waiter takes the engine if it is free, and asks the progress thread for it otherwise. While
//     anybody waits, the progress thread stays parked.
//   * Waiters that don't own the engine sleep on one condition variable; completions wake them, and
//     an owner that leaves.
//   * An owner that leaves wakes the progress thread if work remains and no waiter is there.
//   * An owner with nothing to do spins briefly, yields (idle_policy.h), then arms the transport's
//     doorbell and sleeps in the transport: there is no other place where an owner sleeps.
//   * The progress thread that is woken for little sleeps while more comes, though not for long:
//     what is executed together costs less. Whoever waits takes the engine meanwhile.
//   * The progress thread parks on a process-local condition variable when nothing is pending, and
//     looks at the transport twice a second, and at once where it says that a rank may be lost of
//     which others have to be told.
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
  // What the engine drives.
  class Work {
   public:
    virtual ~Work() = default;
    // Advances everything as far as one chunk; returns whether anything moved. By the owner.
    virtual bool Step() = 0;
    // Whether anything is pending or was enqueued, so that the engine has to go on. Any thread.
    virtual bool HasWork() const = 0;
    // How many operations have been enqueued, where nothing else is pending and they are so little
    // that they had better wait a moment for more; else 0. Any thread.
    virtual size_t Gathering() const { return 0; }
    // What runs now may end without waking the transport: how long it may be left alone. By the
    // owner.
    virtual double MaxSleepSeconds() { return std::numeric_limits<double>::infinity(); }
    // Completion callbacks that Step() collected, to be run without the engine. By the owner.
    virtual std::vector<std::function<void()>> TakeCallbacks() = 0;
    virtual bool HasCallbacks() const = 0;
  };

  Engine(Work& work, Transport& transport);
  ~Engine();  // stops

  void Start();

  // Something was enqueued that nobody is going to wait for right now. Any thread.
  void NotifyInput();

  // The same of what takes one turn, which this thread makes where the engine is free: cheaper than
  // to wake the progress thread. It runs no callbacks: its caller may hold locks. Any thread.
  void TurnOrNotify();

  // Wakes the waiters: an operation is done. By the owner.
  void NotifyDone();

  // Drives or sleeps until `done` or the monotonic time `deadline`; returns the last value of done.
  // Any thread that is not inside a callback.
  bool WaitFor(const std::function<bool()>& done, double deadline);

  // Threads inside WaitFor(). One of them drives, if there are any; else the progress thread does.
  int waiting() const { return waiting_.load(); }

  // Drives once, if the engine is free: for who drives by himself, without Start(). Whether
  // anything moved.
  bool Turn();

  // Ends the progress thread and takes the engine for good: afterwards nobody drives. Once, any
  // thread, also from a callback.
  void Stop();

 private:
  void ThreadMain();
  // By the progress thread: lets what is enqueued one after the other come together.
  void Gather(std::unique_lock<std::mutex>& lock);
  // The transport has to be polled soon. Any thread.
  void Look();
  // Takes the engine if it is free.
  bool Own();
  // Drives as the owner: for a waiter until *done or the deadline, for the progress thread (done is
  // null) until there is no work or somebody waits. Whether it still owns the engine then.
  bool Drive(const std::function<bool()>* done, double deadline);
  bool RunCallbacks(bool is_thread, std::vector<std::function<void()>> callbacks);
  // Nothing moves: yields, or sleeps until something may have moved.
  void Idle(bool is_thread, double now, double deadline);
  void Leave();
  void LeaveLocked();  // mutex_ is held

  Work& work_;
  Transport& transport_;
  std::thread thread_;
  bool has_thread_ = false;  // since Start()

  std::mutex mutex_;
  std::condition_variable waiters_cv_;  // completion, or the engine is free
  std::condition_variable parked_cv_;   // the progress thread has something to do
  bool owned_ = false;                  // guarded by mutex_
  // These pair with HasWork() and the operations' done flags: whoever goes to sleep raises its flag
  // first and looks again; whoever brings news does so first and then looks at the flag (all
  // seq_cst).
  std::atomic<int> waiting_{0};
  std::atomic<bool> parked_{false};
  std::atomic<bool> look_{false};    // the transport wants to be polled
  std::atomic<bool> asleep_{false};  // the owner is in transport_.Sleep(), or about to
  std::atomic<bool> stop_{false};
  // By the owner.
  bool owner_waits_ = false;  // it is a waiter
  IdlePolicy idle_;
};

}  // namespace horoscale
