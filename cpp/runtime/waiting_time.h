// WaitingTime: for how long the user's threads have waited for operations. Any thread.
#pragma once

#include <mutex>

#include "platform/clock.h"

namespace horoscale {

class WaitingTime {
 public:
  void Begin() {
    std::lock_guard lock(mutex_);
    if (threads_++ == 0) since_ = MonotonicSeconds();
  }

  void End() {
    std::lock_guard lock(mutex_);
    if (--threads_ == 0) ended_ += MonotonicSeconds() - since_;
  }

  // With the wait that is under way. Threads that wait at the same time count once.
  double Seconds() const {
    std::lock_guard lock(mutex_);
    return threads_ == 0 ? ended_ : ended_ + MonotonicSeconds() - since_;
  }

 private:
  mutable std::mutex mutex_;
  int threads_ = 0;
  double since_ = 0;
  double ended_ = 0;
};

}  // namespace horoscale
