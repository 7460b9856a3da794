// Pieces of shared memory, seen side by side in one range of this process' addresses.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"

namespace horoscale {

// Maps the pages of `pieces`, of `bytes` each, a second time, one after the other. The pieces are
// parts of shared mappings of this process and may go afterwards: the pages stay. kInvalidArgument
// unless they begin and end with pages.
Result<std::byte*> JoinMemory(std::span<std::byte* const> pieces, size_t bytes);

// Puts zeros of this process' own in the place of the pages.
Status LeaveMemory(std::byte* joined, size_t bytes);

void UnmapMemory(std::byte* joined, size_t bytes);

}  // namespace horoscale
