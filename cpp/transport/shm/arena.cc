#include "transport/shm/arena.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "platform/random.h"

namespace horoscale {
namespace {

// Whether the address space has room for that much (`ulimit -v`).
bool CanMap(size_t bytes) {
  void* probe = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED) return false;
  munmap(probe, bytes);
  return true;
}

// Exceeding `ulimit -f` does not only fail: a signal ends the process.
size_t LargestFile() {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return limit.rlim_cur;
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::Create(size_t bytes, int ranks) {
  bytes = std::min(bytes, LargestFile()) / kPageBytes * kPageBytes;
  if (bytes < kLeastBytes) {
    return Status::InvalidArgument("shared memory of " + std::to_string(bytes) +
                                   " bytes (option, or `ulimit -f`); at least " +
                                   std::to_string(kLeastBytes) + " are required");
  }
  while (true) {
    Status failed = Status::System("reserving address space (see `ulimit -v`)", ENOMEM);
    if (CanMap(bytes * static_cast<size_t>(ranks))) {
      Result<MemFd> memory = MemFd::Create("horoscale", bytes);
      Result<MappedRegion> region =
          memory.ok() ? MappedRegion::Map(*memory) : Result<MappedRegion>(memory.status());
      if (region.ok()) {
        std::unique_ptr<Arena> arena(new Arena(memory.TakeValue(), region.TakeValue()));
        HS_RETURN_IF_ERROR(
            FillRandom(std::as_writable_bytes(std::span(&arena->header().token, 1))));
        return arena;
      }
      failed = region.status();
    }
    if (bytes / 2 < kLeastBytes) return failed;
    bytes = bytes / 2 / kPageBytes * kPageBytes;
  }
}

Arena::Arena(MemFd memory, MappedRegion region)
    : memory_(std::move(memory)), region_(std::move(region)) {
  static_assert(sizeof(ArenaHeader) <= kPageBytes);
  free_[kPageBytes] = region_.bytes() - kPageBytes;
}

Result<std::byte*> Arena::Allocate(size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes <= region_.bytes()) {
    const size_t rounded = (std::max<size_t>(bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
    for (const auto& [offset, room] : free_) {
      if (room < rounded) continue;
      if (room > rounded) free_[offset + rounded] = room - rounded;
      used_[offset] = rounded;
      std::byte* const block = region_.data() + offset;
      free_.erase(offset);
      return block;
    }
  }
  return Status(StatusCode::kSystem, "not enough free memory for " + std::to_string(bytes) +
                                         " bytes in the " + std::to_string(region_.bytes()) +
                                         " bytes of shared memory of this rank");
}

void Arena::Free(std::byte* block) {
  std::lock_guard lock(mutex_);
  const auto at = used_.find(static_cast<size_t>(block - region_.data()));
  assert(at != used_.end());
  const auto [offset, bytes] = *at;
  used_.erase(at);
  // The next owner expects zeros, with or without the kernel's help.
  if (!memory_.Discard(offset, bytes).ok()) std::memset(block, 0, bytes);
  MergeIntoFree(offset, bytes);
}

void Arena::MergeIntoFree(size_t offset, size_t bytes) {
  const auto after = free_.lower_bound(offset);
  if (after != free_.end() && offset + bytes == after->first) {
    bytes += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

int64_t Arena::OffsetOf(const std::byte* memory, size_t bytes) const {
  if (memory < region_.data() || memory >= region_.data() + region_.bytes()) return -1;
  const size_t offset = static_cast<size_t>(memory - region_.data());
  std::lock_guard lock(mutex_);
  const auto after = used_.upper_bound(offset);
  if (after == used_.begin()) return -1;
  const auto& [begin, room] = *std::prev(after);
  const size_t into = offset - begin;
  if (into >= room || bytes > room - into) return -1;
  return static_cast<int64_t>(offset);
}

std::byte* AddressInArena(const MappedRegion& region, int64_t offset, size_t bytes) {
  if (offset < static_cast<int64_t>(Arena::kPageBytes)) return nullptr;
  const auto begin = static_cast<size_t>(offset);
  if (begin > region.bytes() || bytes > region.bytes() - begin) return nullptr;
  return region.data() + begin;
}

}  // namespace horoscale
