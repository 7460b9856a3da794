// The first message of an authenticated process on a link: it is refused, or its rank, stream and
// memory are what this rank expects.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <vector>

#include "platform/unix_socket.h"
#include "transport/shm/link.h"
#include "transport/tcp/tcp_hello.h"

using namespace horoscale;

namespace {

void FeedTcp(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(TcpHello)) return;
  TcpHello own;
  own.rank = 1;
  own.data_streams = 4;
  const std::set<int> expected = {2, 3};
  const auto hello = DecodeTcpHello(bytes.first<sizeof(TcpHello)>(), own, expected, "a peer");
  if (!hello.ok()) return;
  if (!expected.contains(hello->rank) || hello->stream > own.data_streams) abort();
}

// A peer whose memory is its header plus one page; it sends `fds` of the expected descriptors.
void FeedShm(std::span<const std::byte> bytes, size_t fds) {
  static const auto arena = Arena::Create(Arena::kLeastBytes, 1).TakeValue();
  static const EventFd doorbell = EventFd::Create().TakeValue();
  static const size_t ring_bytes = 1024;
  static std::byte* const ring = arena->Allocate(RingMemoryBytes(ring_bytes)).TakeValue();
  LinkHello own;
  own.rank = 1;
  own.size = 4;
  own.banks = 4;
  own.chunk_bytes = 4096;
  own.ring_bytes = ring_bytes;
  auto [near, far] = UnixPair().TakeValue();
  const Deadline now = Deadline::After(0);
  const size_t first = std::min(bytes.size(), sizeof(LinkHello) + sizeof(int64_t));
  if (!far.SendAll(bytes.first(first), now).ok()) abort();
  if (fds > 0) {
    const MemFd memory = MemFd::Create("fuzz", 3 * Arena::kPageBytes).TakeValue();
    const int own_fds[] = {memory.fd(), doorbell.fd(), doorbell.fd()};
    if (!SendDescriptors(far, std::span(own_fds).first(fds), now).ok()) abort();
  }
  const Result<int> rank = ReceiveHello(near, own, now);
  if (!rank.ok()) return;
  const Result<ShmLink> link =
      ExchangeMemory(std::move(near), {own, arena.get(), &doorbell}, ring, now);
  if (!link.ok()) return;
  const std::span<std::byte> memory(link->memory.data(), link->memory.bytes());
  const auto offset = static_cast<size_t>(link->in_ring - memory.data());
  if (offset < sizeof(ArenaHeader) || offset > memory.size() - RingMemoryBytes(ring_bytes)) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  FeedTcp(bytes);
  FeedShm(bytes, data[0] % 4);
  return 0;
}
