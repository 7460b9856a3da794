// How many descriptors this process may have.
#pragma once

namespace horoscale {

// Raises the soft limit to the hard one: a rank has some for every other one, and the usual soft
// limit of 1,024 is that low only for programs that use select(). At most kMostDescriptors: there
// are programs, started by this process, that make a table or a loop of the limit.
inline constexpr unsigned long kMostDescriptors = 1UL << 20;
void RaiseDescriptorLimit();

}  // namespace horoscale
