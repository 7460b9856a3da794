// Doorbell: wakes a rank that sleeps, and costs one load when it doesn't.
//
// The sleeper: set its flag, look at everything it waits for once more, sleep on its eventfd. The
// sender: store what it has to say, then Ring(). All of these stores and loads are seq_cst, so
// either the sleeper's last look finds the news or the sender finds the flag
// (tests/model/doorbell.pml).
#pragma once

#include <atomic>
#include <cstdint>

#include "platform/event_fd.h"

namespace horoscale {

// In memory that the peers see. Zero: awake.
using SleepFlag = std::atomic<uint32_t>;
static_assert(SleepFlag::is_always_lock_free);

// A sender's handle on another rank's doorbell; owns neither the flag nor the event.
class Doorbell {
 public:
  Doorbell(SleepFlag* sleeping, const EventFd* event) : sleeping_(sleeping), event_(event) {}

  // Call after a seq_cst store that the owner looks at before it sleeps.
  void Ring() {
    if (sleeping_->load() == 0) return;
    if (sleeping_->exchange(0) == 0) return;  // another sender rings: once a sleep is enough
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
