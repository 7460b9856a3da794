#include "base/aligned_memory.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace horoscale {
namespace {

constexpr std::align_val_t kCacheLine{64};

}  // namespace

void AlignedDelete::operator()(std::byte* memory) const { ::operator delete(memory, kCacheLine); }

AlignedMemory AllocateAligned(size_t bytes) {
  void* const memory = ::operator new(std::max<size_t>(bytes, 1), kCacheLine, std::nothrow);
  if (memory != nullptr) std::memset(memory, 0, bytes);
  return AlignedMemory(static_cast<std::byte*>(memory));
}

}  // namespace horoscale
