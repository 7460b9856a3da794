// Poller: a set of descriptors that one thread waits on (epoll).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "platform/unique_fd.h"

namespace horoscale {

class Poller {
 public:
  // kRead and kReadWrite are level-triggered. kEndOnce reports once that a socket's peer has closed
  // it, kReadOnce that there is something to read.
  enum class Interest { kRead, kReadWrite, kEndOnce, kReadOnce };

  struct Ready {
    uint64_t tag = 0;
    // Errors and hang-ups set both, so that the next read or write finds them.
    bool readable = false;
    bool writable = false;
  };

  static Result<Poller> Create();

  // Wait() returns the tag, which need not be unique. Any thread, like Modify() and Remove().
  Status Add(int fd, uint64_t tag, Interest interest = Interest::kRead);
  Status Modify(int fd, uint64_t tag, Interest interest);
  // The descriptor must still be open.
  void Remove(int fd);

  // Readable when Wait() would return immediately; for another poller.
  int fd() const { return epoll_.get(); }

  // Waits at most `seconds` (infinity: no limit), with sub-millisecond resolution if the kernel
  // supports it, otherwise rounded up to milliseconds. Fills in the ready descriptors and returns
  // their number. A signal ends the wait early, so that callers can respond to it: 0 does not imply
  // that the time has passed.
  Result<size_t> Wait(double seconds, std::span<Ready> ready);

 private:
  explicit Poller(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  UniqueFd epoll_;
};

}  // namespace horoscale
