// Shared memory between the processes of a host: a sealed memfd and its mappings.
//
// A memfd has no name in a file system, is not limited by the size of /dev/shm, and is freed with
// its last descriptor and mapping. It is sparse: pages are allocated when they are first touched.
// The seals fix its size, so that no peer can shrink it under a mapping (which would raise SIGBUS).
#pragma once

#include <cstddef>

#include "base/status.h"
#include "platform/unique_fd.h"

namespace horoscale {

class MemFd {
 public:
  // Creates zeroed memory. `name` is informational and appears in /proc/<pid>/maps.
  static Result<MemFd> Create(const char* name, size_t bytes);
  // Takes ownership of a descriptor from a peer. kProtocol if it is not a memfd with a sealed size.
  static Result<MemFd> Adopt(UniqueFd fd);

  int fd() const { return fd_.get(); }
  size_t bytes() const { return bytes_; }

  // Frees the pages, which then read as zeros in every mapping. Both arguments must be multiples of
  // the page size.
  Status Discard(size_t offset, size_t bytes) const;

 private:
  MemFd(UniqueFd fd, size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  UniqueFd fd_;
  size_t bytes_;
};

// Like MemFd::Discard(), through a mapping of the memfd. Both arguments must be multiples of the
// page size.
Status DiscardPages(std::byte* memory, size_t bytes);

// A readable and writable mapping of a whole memfd. It may outlive the MemFd's descriptor.
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
