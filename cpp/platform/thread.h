// Thread: a thread of ours. It blocks all signals, which are the user's threads' business, and its
// creation can fail without an exception.
#pragma once

#include <pthread.h>

#include <functional>
#include <optional>
#include <utility>

#include "base/status.h"

namespace horoscale {

class Thread {
 public:
  // `name` shows in top and in debuggers; at most 15 bytes of it.
  static Result<Thread> Start(const char* name, std::function<void()> body);

  Thread() = default;
  Thread(Thread&& other) noexcept : handle_(std::exchange(other.handle_, std::nullopt)) {}
  // Joins the thread it replaces.
  Thread& operator=(Thread&& other) noexcept;
  ~Thread() { Join(); }

  bool joinable() const { return handle_.has_value(); }
  void Join();
  // Leaves it to itself.
  void Detach();

 private:
  explicit Thread(pthread_t handle) : handle_(handle) {}
  std::optional<pthread_t> handle_;
};

}  // namespace horoscale
