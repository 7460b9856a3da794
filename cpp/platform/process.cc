#include "platform/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace horoscale {
namespace {

#ifdef SYS_pidfd_open
constexpr long kPidfdOpen = SYS_pidfd_open;
#else
constexpr long kPidfdOpen = 434;  // the same on every architecture
#endif

// Empty where /proc is hidden; then the host name must suffice.
std::string BootId() {
  const UniqueFd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return "";
  char text[64];
  const ssize_t got = read(file.get(), text, sizeof(text));
  std::string id(text, got > 0 ? static_cast<size_t>(got) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace

Result<UniqueFd> OpenPidFd(pid_t pid) {
  // The kernel makes every pidfd close-on-exec.
  UniqueFd fd(static_cast<int>(syscall(kPidfdOpen, pid, 0U)));
  if (!fd.valid()) return Status::System("pidfd_open of process " + std::to_string(pid), errno);
  return fd;
}

Status ReadProcessMemory(pid_t pid, uint64_t address, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    const iovec local = {to, bytes};
    const iovec remote = {reinterpret_cast<void*>(address), bytes};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return Status::System("process_vm_readv of process " + std::to_string(pid),
                            got < 0 ? errno : EFAULT);
    }
    to += got;
    address += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return Status::Ok();
}

std::string HostIdentity(const std::optional<std::string>& given) {
  if (given) return *given;
  utsname names;
  uname(&names);
  return std::string(names.nodename) + "/" + BootId();
}

Result<PeerCredentials> GetPeerCredentials(const ByteStream& stream) {
  ucred credentials;
  socklen_t length = sizeof(credentials);
  if (getsockopt(stream.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) {
    return Status::System("reading the credentials of " + stream.peer(), errno);
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

}  // namespace horoscale
