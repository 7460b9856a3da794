#include "platform/poller.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "platform/wait.h"

namespace horoscale {
namespace {

constexpr size_t kMaxEvents = 64;

#ifdef SYS_epoll_pwait2
constexpr long kEpollPwait2 = SYS_epoll_pwait2;
#else
constexpr long kEpollPwait2 = 441;  // the same on every architecture
#endif

int WaitMilliseconds(int epoll, epoll_event* events, int capacity, double seconds) {
  // Rounded up: waking too early would make the caller spin for the rest.
  const int timeout =
      std::isinf(seconds) ? -1 : static_cast<int>(std::ceil(std::clamp(seconds, 0.0, 1e6) * 1e3));
  return epoll_wait(epoll, events, capacity, timeout);
}

int WaitEvents(int epoll, epoll_event* events, int capacity, double seconds) {
  // Kernels before 5.11 lack the call, and sandboxes may forbid it.
  static std::atomic<bool> has_pwait2{true};
  if (has_pwait2.load(std::memory_order_relaxed)) {
    const timespec timeout = ToTimespec(seconds);
    const long count = syscall(kEpollPwait2, epoll, events, capacity,
                               std::isinf(seconds) ? nullptr : &timeout, nullptr, size_t{0});
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(count);
    has_pwait2.store(false, std::memory_order_relaxed);
  }
  return WaitMilliseconds(epoll, events, capacity, seconds);
}

epoll_event MakeEvent(uint64_t tag, Poller::Interest interest) {
  epoll_event event{};
  switch (interest) {
    case Poller::Interest::kRead:
      event.events = EPOLLIN;
      break;
    case Poller::Interest::kReadWrite:
      event.events = EPOLLIN | EPOLLOUT;
      break;
    case Poller::Interest::kEndOnce:
      event.events = EPOLLRDHUP | EPOLLET;
      break;
    case Poller::Interest::kReadOnce:
      event.events = EPOLLIN | EPOLLET;
      break;
  }
  event.data.u64 = tag;
  return event;
}

}  // namespace

Result<Poller> Poller::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Status::System("epoll_create1", errno);
  return Poller(std::move(epoll));
}

Status Poller::Add(int fd, uint64_t tag, Interest interest) {
  epoll_event event = MakeEvent(tag, interest);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) < 0) {
    return Status::System("epoll_ctl(ADD)", errno);
  }
  return Status::Ok();
}

Status Poller::Modify(int fd, uint64_t tag, Interest interest) {
  epoll_event event = MakeEvent(tag, interest);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) < 0) {
    return Status::System("epoll_ctl(MOD)", errno);
  }
  return Status::Ok();
}

void Poller::Remove(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

Result<size_t> Poller::Wait(double seconds, std::span<Ready> ready) {
  std::array<epoll_event, kMaxEvents> events;
  const int capacity = static_cast<int>(std::min(ready.size(), events.size()));
  const int count = WaitEvents(epoll_.get(), events.data(), capacity, seconds);
  if (count < 0) {
    if (errno == EINTR) return size_t{0};
    return Status::System("epoll_wait", errno);
  }
  for (int i = 0; i < count; ++i) {
    const bool broken = (events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
    ready[i] = {.tag = events[i].data.u64,
                .readable = broken || (events[i].events & EPOLLIN) != 0,
                .writable = broken || (events[i].events & EPOLLOUT) != 0};
  }
  return static_cast<size_t>(count);
}

}  // namespace horoscale
