// Identifies this host, and the process on the other side of a socket.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/unique_fd.h"

namespace horoscale {

// A descriptor that becomes readable when the process ends, even if other processes hold its
// sockets.
Result<UniqueFd> OpenPidFd(pid_t pid);

// Copies memory of another process, if the system permits it.
Status ReadProcessMemory(pid_t pid, uint64_t address, std::byte* to, size_t bytes);

// Equal for two processes if and only if they are on one host: HOROSCALE_HOSTNAME if the user has
// set it; otherwise the host name and the kernel's boot ID, because host names are not unique.
std::string HostIdentity(const std::optional<std::string>& given);

// The process that opened the other end of a Unix socket, according to the kernel. The pid is 0 if
// that process is not visible (another pid namespace).
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerCredentials> GetPeerCredentials(const ByteStream& stream);

}  // namespace horoscale
