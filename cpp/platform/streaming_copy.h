// A copy with non-temporal stores, which avoids reading the destination's cache lines and evicting
// others. For large copies that this core will not read again soon; data that is in the caches is
// copied faster by memcpy.
#pragma once

#include <cstddef>

namespace horoscale {

// Any alignment; the ranges must not overlap. A later release store also publishes the copy.
void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace horoscale
