// EventFd: a descriptor that becomes readable when somebody signals it, across threads and
// processes.
#pragma once

#include "base/status.h"
#include "platform/unique_fd.h"

namespace horoscale {

class EventFd {
 public:
  static Result<EventFd> Create();
  // Takes over a descriptor that a peer has passed; it has to be an eventfd that doesn't block.
  explicit EventFd(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }

  // Any thread; async-signal-safe. Signals that nobody has drained yet merge into one.
  void Signal() const;
  // Makes it unreadable until the next signal.
  void Drain() const;

 private:
  UniqueFd fd_;
};

}  // namespace horoscale
