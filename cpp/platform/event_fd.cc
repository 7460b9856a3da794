#include "platform/event_fd.h"

#include <errno.h>
#include <sys/eventfd.h>

#include <cstdint>

namespace horoscale {

Result<EventFd> EventFd::Create() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return Status::System("eventfd", errno);
  return EventFd(std::move(fd));
}

void EventFd::Signal() const {
  const int saved_errno = errno;  // a signal handler must preserve it
  const uint64_t one = 1;
  // It fails only if the counter is full, and then the descriptor is already readable.
  [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof(one));
  errno = saved_errno;
}

void EventFd::Drain() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(fd_.get(), &count, sizeof(count));
}

}  // namespace horoscale
