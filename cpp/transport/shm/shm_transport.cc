#include "transport/shm/shm_transport.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <span>
#include <utility>

#include "platform/clock.h"
#include "platform/process.h"
#include "platform/wait.h"

namespace horoscale {
namespace {

// Tags in the poller: a rank, or one of these.
constexpr uint64_t kDoorbellTag = uint64_t{1} << 32;
constexpr uint64_t kWakeTag = kDoorbellTag + 1;
constexpr uint64_t kForeignTag = kDoorbellTag + 2;

// A busy engine checks for exited peers once a millisecond, and reads the clock only occasionally:
// the check is a system call, the clock takes 20 ns.
constexpr int64_t kCheckEveryNs = 1'000'000;
constexpr uint32_t kPollsPerClock = 16;

// How long a process may take to exit after its memory has been freed.
constexpr double kEndSeconds = 0.5;

bool IsReadable(int fd) { return WaitForDescriptor(fd, POLLIN, Deadline::After(0)).ok(); }

}  // namespace

Result<std::unique_ptr<ShmTransport::Own>> ShmTransport::MakeOwn(const ShmConfig& config) {
  Result<std::unique_ptr<Arena>> arena = Arena::Create(config.arena_bytes, config.size);
  if (!arena.ok()) return arena.status();
  Result<EventFd> doorbell = EventFd::Create();
  if (!doorbell.ok()) return doorbell.status();
  Result<EventFd> wake = EventFd::Create();
  if (!wake.ok()) return wake.status();
  Result<Poller> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  HS_RETURN_IF_ERROR(poller->Add(doorbell->fd(), kDoorbellTag));
  HS_RETURN_IF_ERROR(poller->Add(wake->fd(), kWakeTag));
  return std::make_unique<Own>(
      Own{arena.TakeValue(), doorbell.TakeValue(), wake.TakeValue(), poller.TakeValue()});
}

Result<std::unique_ptr<ShmTransport>> ShmTransport::Create(const ShmConfig& config, Store& store) {
  HS_RETURN_IF_ERROR(CheckOptions(config.memory));
  Result<std::unique_ptr<Own>> own = MakeOwn(config);
  if (!own.ok()) return own.status();
  std::map<int, std::byte*> rings;
  for (const int rank : config.mesh.ranks) {
    if (rank == config.rank) continue;
    Result<std::byte*> ring = (*own)->arena->Allocate(RingMemoryBytes(config.memory.ring_bytes));
    if (!ring.ok()) return ring.status();
    rings[rank] = *ring;
  }
  std::map<int, ShmLink> links;
  if (config.mesh.ranks.size() > 1) {
    LinkHello hello;
    hello.rank = config.rank;
    hello.size = config.size;
    hello.banks = config.memory.banks.banks;
    hello.chunk_bytes = config.memory.banks.chunk_bytes;
    hello.ring_bytes = config.memory.ring_bytes;
    const LinkOffer offer = {hello, (*own)->arena.get(), &(*own)->doorbell};
    Result<std::map<int, ShmLink>> mesh = ConnectMesh(config.mesh, offer, rings, store);
    if (!mesh.ok()) return mesh.status();
    links = mesh.TakeValue();
  }
  std::unique_ptr<ShmTransport> transport(
      new ShmTransport(config, own.TakeValue(), std::move(links), rings));
  HS_RETURN_IF_ERROR(transport->Watch());
  return transport;
}

ShmTransport::ShmTransport(const ShmConfig& config, std::unique_ptr<Own> own,
                           std::map<int, ShmLink> links, const std::map<int, std::byte*>& rings)
    : MemoryTransport(config.rank, config.size, config.memory, &own->arena->header().sleeping,
                      &own->doorbell),
      own_(std::move(own)),
      links_(std::move(links)) {
  for (const auto& [peer, link] : links_) {
    Connect(peer, {.out_ring = rings.at(peer),
                   .in_ring = link.in_ring,
                   .sleeping = &link.header().sleeping,
                   .doorbell = &link.doorbell});
  }
}

Status ShmTransport::Watch() {
  for (const auto& [peer, link] : links_) {
    const auto tag = static_cast<uint64_t>(peer);
    HS_RETURN_IF_ERROR(own_->poller.Add(link.socket.fd(), tag));
    if (link.pidfd.valid()) HS_RETURN_IF_ERROR(own_->poller.Add(link.pidfd.get(), tag));
  }
  return {};
}

Status ShmTransport::WakeOn(int fd) { return own_->poller.Add(fd, kForeignTag); }

std::vector<int> ShmTransport::EndDescriptors() const {
  std::vector<int> descriptors;
  for (const auto& [peer, link] : links_) {
    descriptors.push_back(link.socket.fd());
    if (link.pidfd.valid()) descriptors.push_back(link.pidfd.get());
  }
  return descriptors;
}

void ShmTransport::Unwatch(const ShmLink& link) {
  own_->poller.Remove(link.socket.fd());
  if (link.pidfd.valid()) own_->poller.Remove(link.pidfd.get());
}

void ShmTransport::Sleep(double seconds) {
  if (LookAtDescriptors(seconds)) own_->wake.Drain();
}

void ShmTransport::CheckPeers() {
  if (++polls_ % kPollsPerClock != 0) return;
  const int64_t now = MonotonicNanoseconds();
  if (now - last_check_ns_ < kCheckEveryNs) return;
  last_check_ns_ = now;
  LookAtDescriptors(0);
}

bool ShmTransport::LookAtDescriptors(double seconds) {
  std::array<Poller::Ready, 16> ready;
  Result<size_t> count = own_->poller.Wait(seconds, ready);
  bool woken = false;
  for (size_t i = 0; count.ok() && i < *count; ++i) {
    if (ready[i].tag < kDoorbellTag) OnPeerEnd(static_cast<int>(ready[i].tag));
    if (ready[i].tag == kWakeTag) woken = true;
  }
  return woken;
}

void ShmTransport::OnPeerEnd(int rank) {
  const ShmLink& link = links_.at(rank);
  Unwatch(link);
  if (link.pidfd.valid() && IsReadable(link.pidfd.get())) {
    MarkEnded(rank, "its process ended");
  } else {
    MarkEnded(rank, "its link was closed unexpectedly");
  }
}

Result<std::byte*> ShmTransport::AllocateShared(size_t bytes) {
  return own_->arena->Allocate(bytes);
}

void ShmTransport::FreeShared(std::byte* memory) { own_->arena->Free(memory); }

int64_t ShmTransport::SharedOffset(const std::byte* memory, size_t bytes) const {
  return own_->arena->OffsetOf(memory, bytes);
}

std::byte* ShmTransport::SharedAddress(int rank, int64_t offset, size_t bytes) const {
  if (rank == this->rank()) return AddressInArena(own_->arena->region(), offset, bytes);
  return AddressInArena(links_.at(rank).memory, offset, bytes);
}

// While the process lives, its PID can't be reused.
bool ShmTransport::ReadMemory(int rank, uint64_t address, std::span<std::byte> into) {
  const ShmLink& link = links_.at(rank);
  if (link.readable_pid == 0 || !link.pidfd.valid()) return false;
  if (!ReadProcessMemory(link.readable_pid, address, into.data(), into.size()).ok()) return false;
  return !IsReadable(link.pidfd.get());
}

StagingAreas* ShmTransport::StagingWith(int rank) {
  return rank != this->rank() && CanReadPrivate(rank) ? &staging_ : nullptr;
}

bool ShmTransport::CanReadPrivate(int rank) const {
  if (rank == this->rank()) return true;
  const ShmLink& link = links_.at(rank);
  return link.readable_pid != 0 && link.pidfd.valid();
}

// Reads it as other processes would, at both ends: a tensor is within one mapping.
bool ShmTransport::CanBeRead(const std::byte* memory, size_t bytes) const {
  std::byte read;
  for (const std::byte* end : {memory, memory + bytes - 1}) {
    if (!ReadProcessMemory(getpid(), reinterpret_cast<uint64_t>(end), &read, 1).ok()) return false;
  }
  return true;
}

Status ShmTransport::ReadPrivate(int rank, uint64_t address, std::byte* to, size_t bytes) const {
  const ShmLink& link = links_.at(rank);
  const Status status = ReadProcessMemory(link.readable_pid, address, to, bytes);
  // While the process lives, its PID can't be reused.
  if (status.ok() && !IsReadable(link.pidfd.get())) return status;
  // A process's memory is freed shortly before its exit is signaled.
  const bool has_ended =
      WaitForDescriptor(link.pidfd.get(), POLLIN, Deadline::After(kEndSeconds)).ok();
  return UnreadableRank(rank, has_ended ? "its process ended" : status.message());
}

void ShmTransport::Close(std::span<const std::byte> last_frame, double seconds) {
  SendLast(last_frame, Deadline::After(seconds));
  for (const auto& [peer, link] : links_) {
    Unwatch(link);
    // shutdown() as well as close(), because a forked child may also hold the socket.
    shutdown(link.socket.fd(), SHUT_RDWR);
  }
}

}  // namespace horoscale
