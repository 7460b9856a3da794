// A copy past the caches: it spares reading the lines that are written, and drives nothing out. For
// much memory that this core will not read again soon; what is in the caches is copied faster
// without.
#pragma once

#include <cstddef>

namespace horoscale {

// The memory may lie anywhere, but not overlap. A later release store also publishes the copy.
void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace horoscale
