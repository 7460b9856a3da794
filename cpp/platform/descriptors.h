// The limit of this process's file descriptors.
#pragma once

#include "base/status.h"

namespace horoscale {

// Raises the soft limit to the hard limit: a rank needs some descriptors per peer, and the usual
// soft limit of 1,024 is only that low for programs that use select(). At most kMostDescriptors,
// because some programs, which this process may start, allocate a table of this size or loop over
// it.
inline constexpr unsigned long kMostDescriptors = 1UL << 20;
void RaiseDescriptorLimit();

// Whether a call failed because the process or the system has currently run out of descriptors.
bool LacksDescriptors(const Status& failure);

}  // namespace horoscale
