#include "platform/wait.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <cmath>

namespace horoscale {

timespec ToTimespec(double seconds) {
  const double bounded = std::clamp(seconds, 0.0, 1e9);
  timespec result;
  result.tv_sec = static_cast<time_t>(bounded);
  const double rest = std::ceil((bounded - static_cast<double>(result.tv_sec)) * 1e9);
  result.tv_nsec = std::min(static_cast<long>(rest), 999'999'999L);
  return result;
}

Status WaitForDescriptor(int fd, short events, const Deadline& deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const timespec timeout = ToTimespec(deadline.SecondsLeft());
    const int ready = ppoll(&entry, 1, &timeout, nullptr);
    if (ready > 0) return Status::Ok();
    if (ready == 0 && deadline.Passed()) return Status::Timeout("the deadline passed");
    if (ready < 0 && errno != EINTR) return Status::System("poll", errno);
  }
}

}  // namespace horoscale
