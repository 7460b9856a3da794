// Thread: a thread that blocks all signals, which are left to the user's threads, and whose
// creation fails without an exception.
#pragma once

#include <pthread.h>

#include <functional>
#include <optional>
#include <utility>

#include "base/status.h"

namespace horoscale {

class Thread {
 public:
  // `name` appears in top and in debuggers, truncated to 15 bytes.
  static Result<Thread> Start(const char* name, std::function<void()> body);

  Thread() = default;
  Thread(Thread&& other) noexcept : handle_(std::exchange(other.handle_, std::nullopt)) {}
  // Joins the thread that it replaces.
  Thread& operator=(Thread&& other) noexcept;
  ~Thread() { Join(); }

  bool joinable() const { return handle_.has_value(); }
  void Join();
  // Detaches the thread.
  void Detach();

 private:
  explicit Thread(pthread_t handle) : handle_(handle) {}
  std::optional<pthread_t> handle_;
};

}  // namespace horoscale
