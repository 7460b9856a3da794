// EventFd: a descriptor that becomes readable when a thread or process signals it.
#pragma once

#include "base/status.h"
#include "platform/unique_fd.h"

namespace horoscale {

class EventFd {
 public:
  static Result<EventFd> Create();
  // Takes ownership of a descriptor from a peer, which must be a non-blocking eventfd.
  explicit EventFd(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }

  // Any thread; async-signal-safe. Signals that have not been drained are merged.
  void Signal() const;
  // Makes the descriptor unreadable until the next signal.
  void Drain() const;

 private:
  UniqueFd fd_;
};

}  // namespace horoscale
