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

}  // namespace

Status SendHello(ByteStream& socket, const LinkHello& hello, const Deadline& deadline) {
  return socket.SendAll(std::as_bytes(std::span(&hello, 1)), deadline);
}

Result<int> ReceiveHello(ByteStream& socket, const LinkHello& own, const Deadline& deadline) {
  LinkHello hello;
  HS_RETURN_IF_ERROR(socket.ReceiveAll(std::as_writable_bytes(std::span(&hello, 1)), deadline));
  if (hello.magic != LinkHello::kMagic) return Status::Protocol("it sent no link hello");
  if (hello.version != own.version) {
    return Status::Protocol(
        "rank " + std::to_string(hello.rank) + " speaks version " + std::to_string(hello.version) +
        " of horoscale's protocol between ranks, rank " + std::to_string(own.rank) + " version " +
        std::to_string(own.version) + ": install the same horoscale for all ranks");
  }
  LinkHello expected = own;
  expected.rank = hello.rank;
  if (DescribeOptions(hello) != DescribeOptions(expected)) {
    return Status::InvalidArgument("rank " + std::to_string(hello.rank) + " has " +
                                   DescribeOptions(hello) + ", rank " + std::to_string(own.rank) +
                                   " has " + DescribeOptions(own) +
                                   ": give all ranks the same settings");
  }
  return int{hello.rank};
}

Result<ShmLink> ExchangeMemory(ByteStream socket, const LinkOffer& offer, const std::byte* out_ring,
                               const Deadline& deadline) {
  const size_t ring_memory = RingMemoryBytes(offer.hello.ring_bytes);
  const int64_t out_offset = offer.arena->OffsetOf(out_ring, ring_memory);
  HS_RETURN_IF_ERROR(socket.SendAll(std::as_bytes(std::span(&out_offset, 1)), deadline));
  const int own_fds[] = {offer.arena->fd(), offer.doorbell->fd()};
  HS_RETURN_IF_ERROR(SendDescriptors(socket, own_fds, deadline));

  int64_t in_offset;
  HS_RETURN_IF_ERROR(socket.ReceiveAll(std::as_writable_bytes(std::span(&in_offset, 1)), deadline));
  Result<std::vector<UniqueFd>> fds = ReceiveDescriptors(socket, 2, deadline);
  if (!fds.ok()) return fds.status();
  Result<MemFd> memory = MemFd::Adopt(std::move((*fds)[0]));
  if (!memory.ok()) return memory.status();
  Result<MappedRegion> region = MappedRegion::Map(*memory);
  if (!region.ok()) return region.status();
  std::byte* const in_ring = AddressInArena(*region, in_offset, ring_memory);
  if (in_ring == nullptr || in_offset % static_cast<int64_t>(alignof(RingControl)) != 0) {
    return Status::Protocol("its control ring is not in its shared memory");
  }
  UniqueFd pidfd;
  Result<PeerCredentials> peer = GetPeerCredentials(socket);
  // Where there is no pidfd (old kernel, another pid namespace, sandbox) the socket alone has to
  // do.
  if (peer.ok() && peer->pid > 0) {
    if (Result<UniqueFd> opened = OpenPidFd(peer->pid); opened.ok()) pidfd = opened.TakeValue();
  }
  const pid_t pid = pidfd.valid() ? peer->pid : 0;
  return ShmLink{std::move(socket),
                 std::move(pidfd),
                 pid,
                 region.TakeValue(),
                 EventFd(std::move((*fds)[1])),
                 in_ring};
}

Status CheckSameUser(const ByteStream& socket) {
  Result<PeerCredentials> peer = GetPeerCredentials(socket);
  if (!peer.ok()) return peer.status();
  if (peer->uid == geteuid()) return {};
  return Status::Unauthenticated("process " + std::to_string(peer->pid) + " belongs to user " +
                                 std::to_string(peer->uid));
}

}  // namespace horoscale
