// Maps pieces of shared memory into one contiguous address range of this process.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"

namespace horoscale {

// Maps the pages of `pieces`, of `bytes` each, a second time, contiguously. The pieces must be
// parts of shared mappings of this process, which may be unmapped afterwards. kInvalidArgument
// unless the pieces are page-aligned.
Result<std::byte*> JoinMemory(std::span<std::byte* const> pieces, size_t bytes);

// Replaces the pages with private zero pages.
Status LeaveMemory(std::byte* joined, size_t bytes);

void UnmapMemory(std::byte* joined, size_t bytes);

}  // namespace horoscale
