#include "transport/inproc/inproc_transport.h"

#include <errno.h>
#include <poll.h>

#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "platform/wait.h"

namespace horoscale {

InprocTransport::InprocTransport(std::shared_ptr<InprocFabric> fabric, int rank)
    : MemoryTransport(rank, static_cast<int>(fabric->ranks_.size()), fabric->options_,
                      &fabric->ranks_[static_cast<size_t>(rank)]->sleeping,
                      &fabric->ranks_[static_cast<size_t>(rank)]->doorbell),
      fabric_(std::move(fabric)),
      self_(*fabric_->ranks_[static_cast<size_t>(rank)]) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    InprocFabric::Rank& other = *fabric_->ranks_[static_cast<size_t>(peer)];
    Connect(peer, {.out_ring = fabric_->Ring(rank, peer),
                   .in_ring = fabric_->Ring(peer, rank),
                   .sleeping = &other.sleeping,
                   .doorbell = &other.doorbell});
  }
}

void InprocTransport::Sleep(double seconds) {
  pollfd fds[] = {{self_.wake.fd(), POLLIN, 0}, {self_.doorbell.fd(), POLLIN, 0}};
  const timespec time = ToTimespec(seconds);
  ppoll(fds, std::size(fds), &time, nullptr);
  if (fds[0].revents != 0) self_.wake.Drain();
}

void InprocTransport::Wake() { self_.wake.Signal(); }

void InprocTransport::CheckPeers() {
  const uint32_t ended = fabric_->ended_count_.load();
  if (ended == seen_ended_) return;
  seen_ended_ = ended;
  std::lock_guard lock(fabric_->mutex_);
  for (int peer = 0; peer < size(); ++peer) {
    const InprocFabric::Rank& other = *fabric_->ranks_[static_cast<size_t>(peer)];
    if (peer != rank() && other.ended) MarkEnded(peer, other.how);
  }
}

Result<std::byte*> InprocTransport::AllocateShared(size_t bytes) {
  AlignedMemory memory = AllocateAligned(bytes);
  if (memory == nullptr) {
    return Status::System("allocating " + std::to_string(bytes) + " bytes of shared memory",
                          ENOMEM);
  }
  std::byte* const address = memory.get();
  std::lock_guard lock(fabric_->mutex_);
  fabric_->blocks_[address] = {std::move(memory), bytes, rank()};
  return address;
}

void InprocTransport::FreeShared(std::byte* memory) {
  std::lock_guard lock(fabric_->mutex_);
  fabric_->blocks_.erase(memory);
}

bool InprocTransport::Holds(int rank, const std::byte* memory, size_t bytes) const {
  std::lock_guard lock(fabric_->mutex_);
  auto after = fabric_->blocks_.upper_bound(memory);
  if (after == fabric_->blocks_.begin()) return false;
  const auto& [begin, block] = *std::prev(after);
  const size_t offset = static_cast<size_t>(memory - begin);
  return block.owner == rank && offset <= block.bytes && bytes <= block.bytes - offset;
}

// One address space: an offset is the address itself.
int64_t InprocTransport::SharedOffset(const std::byte* memory, size_t bytes) const {
  return Holds(rank(), memory, bytes) ? reinterpret_cast<int64_t>(memory) : -1;
}

std::byte* InprocTransport::SharedAddress(int rank, int64_t offset, size_t bytes) const {
  auto* const address = reinterpret_cast<std::byte*>(offset);
  return Holds(rank, address, bytes) ? address : nullptr;
}

Status InprocTransport::ReadPrivate(int rank, uint64_t address, std::byte* to, size_t bytes) const {
  {
    // The memory of a dead process is not accessible.
    std::lock_guard lock(fabric_->mutex_);
    const InprocFabric::Rank& other = *fabric_->ranks_[static_cast<size_t>(rank)];
    if (other.ended) return UnreadableRank(rank, other.how);
  }
  std::memcpy(to, reinterpret_cast<const std::byte*>(address), bytes);
  return Status::Ok();
}

void InprocTransport::Close(std::span<const std::byte> last_frame, double seconds) {
  SendLast(last_frame, Deadline::After(seconds));
  fabric_->End(rank(), "it closed its link");
}

}  // namespace horoscale
