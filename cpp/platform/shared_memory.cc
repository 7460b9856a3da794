#include "platform/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <limits>
#include <string>
#include <utility>

namespace horoscale {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Newer than some headers. Hardened systems (vm.memfd_noexec=2) reject memfds without it.
constexpr unsigned kNoExecSeal = 0x0008U;

UniqueFd CreateMemFd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(memfd_create(name, kFlags | kNoExecSeal));
  if (!fd.valid() && errno == EINVAL) fd = UniqueFd(memfd_create(name, kFlags));
  return fd;
}

}  // namespace

Result<MemFd> MemFd::Create(const char* name, size_t bytes) {
  if (bytes > static_cast<size_t>(std::numeric_limits<off_t>::max())) {
    return Status::InvalidArgument("invalid size of shared memory: " + std::to_string(bytes) +
                                   " bytes");
  }
  UniqueFd fd = CreateMemFd(name);
  if (!fd.valid()) return Status::System("memfd_create", errno);
  // Otherwise a process of another user could reopen it through /proc.
  if (fchmod(fd.get(), 0600) < 0) return Status::System("fchmod of shared memory", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) < 0) {
    return Status::System("ftruncate of shared memory to " + std::to_string(bytes) + " bytes",
                          errno);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) < 0) {
    return Status::System("sealing shared memory", errno);
  }
  return MemFd(std::move(fd), bytes);
}

Result<MemFd> MemFd::Adopt(UniqueFd fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return Status::Protocol("the peer's descriptor is not shared memory with a sealed size");
  }
  struct stat info;
  if (fstat(fd.get(), &info) < 0) return Status::System("fstat of shared memory", errno);
  return MemFd(std::move(fd), static_cast<size_t>(info.st_size));
}

Status MemFd::Discard(size_t offset, size_t bytes) const {
  while (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                   static_cast<off_t>(offset), static_cast<off_t>(bytes)) < 0) {
    if (errno != EINTR) return Status::System("discarding pages of shared memory", errno);
  }
  return Status::Ok();
}

Status DiscardPages(std::byte* memory, size_t bytes) {
  if (madvise(memory, bytes, MADV_REMOVE) == 0) return Status::Ok();
  return Status::System("discarding pages of shared memory", errno);
}

Result<MappedRegion> MappedRegion::Map(const MemFd& memory) {
  void* address = mmap(nullptr, memory.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                       memory.fd(), 0);
  if (address == MAP_FAILED) {
    return Status::System(
        "mapping " + std::to_string(memory.bytes()) + " bytes of shared memory (see `ulimit -v`)",
        errno);
  }
  // The tensors of all peers would bloat core files. Where the kernel lacks this, they are just
  // larger.
  madvise(address, memory.bytes(), MADV_DONTDUMP);
  return MappedRegion(static_cast<std::byte*>(address), memory.bytes());
}

MappedRegion::MappedRegion(MappedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedRegion& MappedRegion::operator=(MappedRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedRegion::~MappedRegion() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace horoscale
