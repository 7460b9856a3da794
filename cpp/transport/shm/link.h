// ShmLink: the resources of a link to another rank of the host.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/wire_version.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "platform/event_fd.h"
#include "platform/shared_memory.h"
#include "platform/unique_fd.h"
#include "transport/memory/memory_transport.h"
#include "transport/shm/arena.h"

namespace horoscale {

struct ShmLink {
  ByteStream socket;    // unused after the setup; it closes when the peer exits
  UniqueFd pidfd;       // invalid if the system refuses it
  MappedRegion memory;  // the peer's arena
  EventFd doorbell;     // the peer's
  std::byte* in_ring;   // in the peer's arena
  pid_t readable_pid;   // the peer's pid if its private memory can be read; else 0

  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(memory.data()); }
};

// The first message of each side on an authenticated connection, sent in memory layout. The
// descriptors of the sender's arena and doorbell follow.
struct LinkHello {
  static constexpr uint64_t kMagic = 0x4b4e494c4f524f48;  // "HOROLINK"

  uint64_t magic = kMagic;
  uint32_t version = kWireVersion;
  int32_t rank = -1;
  int32_t size = 0;
  uint32_t banks = 0;
  uint64_t chunk_bytes = 0;
  uint64_t ring_bytes = 0;
};
static_assert(sizeof(LinkHello) == 40);

// This rank's part of its links.
struct LinkOffer {
  LinkHello hello;
  const Arena* arena = nullptr;
  const EventFd* doorbell = nullptr;
};

// The three steps of creating a link. Both ranks send their hello first, so that each can report
// what is wrong with the other's.
Status SendHello(ByteStream& socket, const LinkHello& hello, const Deadline& deadline);
// kProtocol or kInvalidArgument if the peer's layout or options differ.
Result<int> ReceiveHello(ByteStream& socket, const LinkHello& own, const Deadline& deadline);
// out_ring is the ring for this peer in this rank's arena.
Result<ShmLink> ExchangeMemory(ByteStream socket, const LinkOffer& offer, const std::byte* out_ring,
                               const Deadline& deadline);

// Checks that the peer's process has the same user ID.
Status CheckSameUser(const ByteStream& socket);

}  // namespace horoscale
