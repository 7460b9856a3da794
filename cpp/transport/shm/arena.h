// Arena: all memory of one rank that its peers on the host can access, in one memfd.
//
// The memfd is huge and sparse, and each peer maps it once, so that later allocations need no
// descriptors or system calls on their side. Pages use memory when they are first touched, and
// release it when their block is freed. (Unlike /dev/shm, the kernel's mount for memfds has no size
// limit.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "platform/shared_memory.h"
#include "transport/memory/doorbell.h"

namespace horoscale {

// The first page of an arena.
struct ArenaHeader {
  alignas(64) SleepFlag sleeping;  // flag of the rank that owns the arena
  alignas(64) uint64_t token;      // random constant that identifies the arena
};

class Arena {
 public:
  static constexpr size_t kDefaultBytes = size_t{64} << 30;
  static constexpr size_t kLeastBytes = size_t{64} << 20;
  static constexpr size_t kPageBytes = 4096;

  // Creates an arena of at most `bytes`, or fewer if the process's limits do not allow `ranks`
  // arenas in its address space.
  static Result<std::unique_ptr<Arena>> Create(size_t bytes, int ranks);

  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(region_.data()); }
  int fd() const { return memory_.fd(); }
  size_t bytes() const { return region_.bytes(); }
  const MappedRegion& region() const { return region_; }

  // Zeroed, page-aligned. Any thread.
  Result<std::byte*> Allocate(size_t bytes);
  void Free(std::byte* block);

  // The offset of [memory, memory + bytes) in the arena; -1 unless all of it is in one allocated
  // block.
  int64_t OffsetOf(const std::byte* memory, size_t bytes) const;

 private:
  Arena(MemFd memory, MappedRegion region);
  void MergeIntoFree(size_t offset, size_t bytes);

  const MemFd memory_;
  const MappedRegion region_;
  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset → bytes; neighbours are merged
  std::map<size_t, size_t> used_;  // offset → bytes as rounded
};

// The address of a peer's offset in this process's mapping of its arena; null if [offset, offset +
// bytes) is out of bounds or overlaps the header.
std::byte* AddressInArena(const MappedRegion& region, int64_t offset, size_t bytes);

}  // namespace horoscale
