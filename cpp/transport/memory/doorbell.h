// Doorbell: wakes a sleeping rank; costs one load if it is awake.
//
// The sleeper sets its flag, checks everything that it waits for once more, and sleeps on its
// eventfd. The sender stores its data, then calls Ring(). All of these stores and loads are
// seq_cst, so either the sleeper's last check finds the data, or the sender finds the flag
// (tests/model/doorbell.pml).
#pragma once

#include <atomic>
#include <cstdint>

#include "platform/event_fd.h"

namespace horoscale {

// In memory that the peers can access. Zero: awake.
using SleepFlag = std::atomic<uint32_t>;
static_assert(SleepFlag::is_always_lock_free);

// A sender's handle to another rank's doorbell; owns neither the flag nor the event.
class Doorbell {
 public:
  Doorbell(SleepFlag* sleeping, const EventFd* event) : sleeping_(sleeping), event_(event) {}

  // Call after a seq_cst store that the owner checks before it sleeps.
  void Ring() {
    if (sleeping_->load() == 0) return;
    if (sleeping_->exchange(0) == 0) return;  // another sender rings: one ring per sleep is enough
    ++times_rung_;
    event_->Signal();
  }

  uint64_t times_rung() const { return times_rung_; }

 private:
  SleepFlag* sleeping_;
  const EventFd* event_;
  uint64_t times_rung_ = 0;
};

}  // namespace horoscale
