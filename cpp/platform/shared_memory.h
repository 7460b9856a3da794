// Shared memory between the processes of a host: a sealed memfd and mappings of it.
//
// A memfd has no name in any file system, is not limited by the size of /dev/shm and is gone with
// its last descriptor and mapping. It is sparse: pages exist from their first touch on. The seals
// fix its size, so that no peer can shrink it under a mapping (which would raise SIGBUS).
#pragma once

#include <cstddef>

#include "base/status.h"
#include "platform/unique_fd.h"

namespace horoscale {

class MemFd {
 public:
  // Zeros. `name` shows up in /proc/<pid>/maps and means nothing.
  static Result<MemFd> Create(const char* name, size_t bytes);
  // Takes over a descriptor from a peer. kProtocol if it isn't a memfd whose size is sealed.
  static Result<MemFd> Adopt(UniqueFd fd);

  int fd() const { return fd_.get(); }
  size_t bytes() const { return bytes_; }

  // Gives the pages back; they read as zeros then, in every mapping. Both arguments are multiples
  // of the page size.
  Status Discard(size_t offset, size_t bytes) const;

 private:
  MemFd(UniqueFd fd, size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  UniqueFd fd_;
  size_t bytes_;
};

// Gives pages of a memfd back through one of its mappings, as MemFd::Discard(). Both arguments are
// multiples of the page size.
Status DiscardPages(std::byte* memory, size_t bytes);

// A whole memfd in this process' memory, readable and writable. It outlives the MemFd's descriptor.
class MappedRegion {
 public:
  static Result<MappedRegion> Map(const MemFd& memory);

  MappedRegion() = default;
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&& other) noexcept;
  ~MappedRegion();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  MappedRegion(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace horoscale
