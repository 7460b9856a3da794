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
  // kRead and kReadWrite are level-triggered. The others tell once: that a socket's peer has ended
  // it, or that there is something to read.
  enum class Interest { kRead, kReadWrite, kEndOnce, kReadOnce };

  struct Ready {
    uint64_t tag = 0;
    // Errors and hang-ups count as both, so that the next read or write finds them.
    bool readable = false;
    bool writable = false;
  };

  static Result<Poller> Create();

  // The tag comes back from Wait(); it need not be unique. Any thread, as Modify() and Remove().
  Status Add(int fd, uint64_t tag, Interest interest = Interest::kRead);
  Status Modify(int fd, uint64_t tag, Interest interest);
  // The descriptor must still be open.
  void Remove(int fd);

  // Readable when Wait() would return at once; for another poller.
  int fd() const { return epoll_.get(); }

  // Waits at most `seconds` (infinity: without end; sub-millisecond where the kernel can, else
  // rounded up to a millisecond) and fills in what is ready; returns how many. A signal ends the
  // wait early, so that callers can look at what the signal meant: 0 doesn't mean that the time is
  // over.
  Result<size_t> Wait(double seconds, std::span<Ready> ready);

 private:
  explicit Poller(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  UniqueFd epoll_;
};

}  // namespace horoscale
