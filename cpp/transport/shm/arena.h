// Arena: all memory of one rank that its peers on the host can reach, in one memfd.
//
// The memfd is huge and sparse and is mapped once by each peer, so that whatever is allocated later
// costs no descriptor and no system call on their side. Memory is used from the first touch of a
// page on and is returned when its block is freed. (The kernel's own mount behind memfds has no
// size limit: unlike a file in /dev/shm it can't be full.)
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
  alignas(64) SleepFlag sleeping;  // of the rank that owns the arena
  alignas(64) uint64_t token;      // by chance, so that an arena is known again; constant
};

class Arena {
 public:
  static constexpr size_t kDefaultBytes = size_t{64} << 30;
  static constexpr size_t kLeastBytes = size_t{64} << 20;
  static constexpr size_t kPageBytes = 4096;

  // At most `bytes`, and less where the limits of the process don't allow for one arena of each of
  // `ranks` in its address space.
  static Result<std::unique_ptr<Arena>> Create(size_t bytes, int ranks);

  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(region_.data()); }
  int fd() const { return memory_.fd(); }
  size_t bytes() const { return region_.bytes(); }
  const MappedRegion& region() const { return region_; }

  // Zeroed, on a page boundary. Any thread.
  Result<std::byte*> Allocate(size_t bytes);
  void Free(std::byte* block);

  // Where [memory, memory + bytes) lies in the arena; -1 unless all of it is in one allocated
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

// The address of an offset that came from a peer, in our mapping of its arena; null if
// [offset, offset + bytes) is not within it or touches the header.
std::byte* AddressInArena(const MappedRegion& region, int64_t offset, size_t bytes);

}  // namespace horoscale
