// Which host this is and which process is on the other side.
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

// A descriptor that becomes readable when the process ends, whoever holds its sockets.
Result<UniqueFd> OpenPidFd(pid_t pid);

// Copies memory of another process, where the system lets us.
Status ReadProcessMemory(pid_t pid, uint64_t address, std::byte* to, size_t bytes);

// Equal for two processes exactly if they are on one host: what the user says (HOROSCALE_HOSTNAME),
// else the host's name and the boot id of its kernel, because names are not unique.
std::string HostIdentity(const std::optional<std::string>& given);

// Who opened the other end of a unix socket, as the kernel says. The pid is 0 if that process isn't
// visible from here (another pid namespace).
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerCredentials> GetPeerCredentials(const ByteStream& stream);

}  // namespace horoscale
