// Waiting for one descriptor.
#pragma once

#include "base/status.h"
#include "platform/deadline.h"

namespace horoscale {

// Waits until the descriptor has one of the poll(2) events, an error or a hang-up. kTimeout if the
// deadline passes first. The descriptor is polled once even if the deadline has already passed.
Status WaitForDescriptor(int fd, short events, const Deadline& deadline);

// Seconds as a timespec, rounded up to a nanosecond and bounded (infinity means some 30 years).
timespec ToTimespec(double seconds);

}  // namespace horoscale
