#include "transport/shm/link.h"

#include <unistd.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/process.h"
#include "platform/unix_socket.h"

namespace horoscale {
namespace {

std::string DescribeOptions(const LinkHello& hello) {
  return std::to_string(hello.size) + " ranks, " + std::to_string(hello.banks) + " banks of " +
         std::to_string(hello.chunk_bytes) + " bytes, control rings of " +
         std::to_string(hello.ring_bytes) + " bytes";
}

// The description of each side's memory, sent in memory layout.
struct MemoryOffer {
  int64_t ring_offset = 0;      // of the control ring to the peer, in the sender's arena
  uint64_t header_address = 0;  // of the arena's header in the sender's address space
};
static_assert(sizeof(MemoryOffer) == 16);

// Whether this process may read the private memory of the process with this pid, and whether that
// process owns the arena. Containers and security modules may forbid it, and the pid may belong to
// another process in a different namespace.
bool IsReadable(pid_t pid, uint64_t header_address, const ArenaHeader& header) {
  uint64_t token = 0;
  const uint64_t address = header_address + offsetof(ArenaHeader, token);
  const Status status =
      ReadProcessMemory(pid, address, reinterpret_cast<std::byte*>(&token), sizeof(token));
  return status.ok() && token == header.token;
}

}  // namespace

Status SendHello(ByteStream& socket, const LinkHello& hello, const Deadline& deadline) {
  return socket.SendAll(std::as_bytes(std::span(&hello, 1)), deadline);
}

Result<int> ReceiveHello(ByteStream& socket, const LinkHello& own, const Deadline& deadline) {
  LinkHello hello;
  HS_RETURN_IF_ERROR(socket.ReceiveAll(std::as_writable_bytes(std::span(&hello, 1)), deadline));
  if (hello.magic != LinkHello::kMagic) return Status::Protocol("it did not send a link hello");
  if (hello.version != own.version) {
    return Status::Protocol(
        "rank " + std::to_string(hello.rank) + " speaks version " + std::to_string(hello.version) +
        " of horoscale's protocol between ranks, rank " + std::to_string(own.rank) + " version " +
        std::to_string(own.version) + ": install the same version of horoscale for all ranks");
  }
  LinkHello expected = own;
  expected.rank = hello.rank;
  if (DescribeOptions(hello) != DescribeOptions(expected)) {
    return Status::InvalidArgument("rank " + std::to_string(hello.rank) + " has " +
                                   DescribeOptions(hello) + ", rank " + std::to_string(own.rank) +
                                   " has " + DescribeOptions(own) +
                                   ": use the same settings for all ranks");
  }
  return int{hello.rank};
}

Result<ShmLink> ExchangeMemory(ByteStream socket, const LinkOffer& offer, const std::byte* out_ring,
                               const Deadline& deadline) {
  const size_t ring_memory = RingMemoryBytes(offer.hello.ring_bytes);
  const int64_t out_offset = offer.arena->OffsetOf(out_ring, ring_memory);
  const MemoryOffer own = {out_offset, reinterpret_cast<uint64_t>(&offer.arena->header())};
  HS_RETURN_IF_ERROR(socket.SendAll(std::as_bytes(std::span(&own, 1)), deadline));
  const int own_fds[] = {offer.arena->fd(), offer.doorbell->fd()};
  HS_RETURN_IF_ERROR(SendDescriptors(socket, own_fds, deadline));

  MemoryOffer theirs;
  HS_RETURN_IF_ERROR(socket.ReceiveAll(std::as_writable_bytes(std::span(&theirs, 1)), deadline));
  Result<std::vector<UniqueFd>> fds = ReceiveDescriptors(socket, 2, deadline);
  if (!fds.ok()) return fds.status();
  Result<MemFd> memory = MemFd::Adopt(std::move((*fds)[0]));
  if (!memory.ok()) return memory.status();
  Result<MappedRegion> region = MappedRegion::Map(*memory);
  if (!region.ok()) return region.status();
  std::byte* const in_ring = AddressInArena(*region, theirs.ring_offset, ring_memory);
  if (in_ring == nullptr || theirs.ring_offset % static_cast<int64_t>(alignof(RingControl)) != 0) {
    return Status::Protocol("its control ring is not in its shared memory");
  }
  UniqueFd pidfd;
  pid_t readable_pid = 0;
  Result<PeerCredentials> peer = GetPeerCredentials(socket);
  // Without a pidfd (old kernel, another pid namespace, sandbox), only the socket detects the
  // peer's exit.
  if (peer.ok() && peer->pid > 0) {
    if (Result<UniqueFd> watched = OpenPidFd(peer->pid); watched.ok()) pidfd = watched.TakeValue();
    const auto* const header = reinterpret_cast<const ArenaHeader*>(region->data());
    if (IsReadable(peer->pid, theirs.header_address, *header)) readable_pid = peer->pid;
  }
  return ShmLink{
      std::move(socket), std::move(pidfd), region.TakeValue(), EventFd(std::move((*fds)[1])),
      in_ring,           readable_pid};
}

Status CheckSameUser(const ByteStream& socket) {
  Result<PeerCredentials> peer = GetPeerCredentials(socket);
  if (!peer.ok()) return peer.status();
  if (peer->uid == geteuid()) return {};
  return Status::Unauthenticated("process " + std::to_string(peer->pid) + " belongs to user " +
                                 std::to_string(peer->uid));
}

}  // namespace horoscale
