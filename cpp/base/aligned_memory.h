// AlignedMemory: memory of the process that shares no cache line with anything else.
#pragma once

#include <cstddef>
#include <memory>

namespace horoscale {

struct AlignedDelete {
  void operator()(std::byte* memory) const;
};
using AlignedMemory = std::unique_ptr<std::byte, AlignedDelete>;

// Zeroed; null if there is none.
AlignedMemory AllocateAligned(size_t bytes);

}  // namespace horoscale
