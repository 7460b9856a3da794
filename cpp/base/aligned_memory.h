// AlignedMemory: private memory that does not share a cache line with other allocations.
#pragma once

#include <cstddef>
#include <memory>

namespace horoscale {

struct AlignedDelete {
  void operator()(std::byte* memory) const;
};
using AlignedMemory = std::unique_ptr<std::byte, AlignedDelete>;

// Returns zeroed memory; null if out of memory.
AlignedMemory AllocateAligned(size_t bytes);

}  // namespace horoscale
