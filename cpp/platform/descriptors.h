// How many descriptors this process may have.
#pragma once

#include "base/status.h"

namespace horoscale {

// Raises the soft limit to the hard one: a rank has some for every other one, and the usual soft
// limit of 1,024 is that low only for programs that use select(). At most kMostDescriptors: there
// are programs, started by this process, that make a table or a loop of the limit.
inline constexpr unsigned long kMostDescriptors = 1UL << 20;
void RaiseDescriptorLimit();

// Whether something failed because the process, or the system, has no descriptor left now.
bool LacksDescriptors(const Status& failure);

}  // namespace horoscale
