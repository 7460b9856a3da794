// WaitingTime: measures how long user threads have waited for operations. Any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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
    if (--threads_ != 0) return;
    const double now = MonotonicSeconds();
    ended_ += now - since_;
    last_[next_++ % kKept] = {since_, now};
  }

  // Includes the current wait. Time in which several threads wait counts once.
  double Seconds() const {
    std::lock_guard lock(mutex_);
    return threads_ == 0 ? ended_ : ended_ + MonotonicSeconds() - since_;
  }

  // The time waited in a recent interval. If it contains more waits than are recorded, only the
  // last ones count.
  double Within(double begin, double end) const {
    std::lock_guard lock(mutex_);
    double seconds = threads_ == 0 ? 0 : Overlap({since_, end}, begin, end);
    for (const Wait& wait : last_) seconds += Overlap(wait, begin, end);
    return seconds;
  }

 private:
  static constexpr size_t kKept = 16;
  struct Wait {
    double begin = 0;
    double end = 0;
  };

  static double Overlap(const Wait& wait, double begin, double end) {
    return std::max(0.0, std::min(wait.end, end) - std::max(wait.begin, begin));
  }

  mutable std::mutex mutex_;
  int threads_ = 0;
  double since_ = 0;
  double ended_ = 0;
  std::array<Wait, kKept> last_{};
  size_t next_ = 0;
};

}  // namespace horoscale
