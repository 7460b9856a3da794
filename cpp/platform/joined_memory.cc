#include "platform/joined_memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace horoscale {
namespace {

bool BeginsPage(const std::byte* address) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<size_t>(sysconf(_SC_PAGESIZE)) == 0;
}

}  // namespace

Result<std::byte*> JoinMemory(std::span<std::byte* const> pieces, size_t bytes) {
  for (const std::byte* piece : pieces) {
    if (bytes == 0 || !BeginsPage(piece) || !BeginsPage(piece + bytes)) {
      return Status::InvalidArgument("pieces of " + std::to_string(bytes) +
                                     " bytes do not consist of whole pages of memory");
    }
  }
  const size_t total = pieces.size() * bytes;
  void* const range =
      mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    return Status::System("reserving address space (see `ulimit -v`)", errno);
  }
  auto* const joined = static_cast<std::byte*>(range);
  for (size_t i = 0; i < pieces.size(); ++i) {
    // An old size of 0 keeps the old mapping and maps the same pages again.
    if (mremap(pieces[i], 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, joined + i * bytes) ==
        MAP_FAILED) {
      const int error = errno;
      // The failed call may have unmapped this range, and another thread may have mapped it since:
      // leave it alone.
      if (i > 0) UnmapMemory(joined, i * bytes);
      if (i + 1 < pieces.size()) UnmapMemory(joined + (i + 1) * bytes, total - (i + 1) * bytes);
      return Status::System("remapping shared memory", error);
    }
  }
  return joined;
}

Status LeaveMemory(std::byte* joined, size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(joined, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) {
    return Status::System("replacing shared memory", errno);
  }
  return {};
}

void UnmapMemory(std::byte* joined, size_t bytes) { munmap(joined, bytes); }

}  // namespace horoscale
