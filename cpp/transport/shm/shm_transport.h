// The transport between the ranks of one host: shared memory, eventfds for wake-ups, and one Unix
// socket per pair of ranks, whose closing signals the peer's exit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "platform/event_fd.h"
#include "platform/poller.h"
#include "rendezvous/store.h"
#include "transport/memory/memory_transport.h"
#include "transport/shm/arena.h"
#include "transport/shm/link.h"
#include "transport/shm/mesh.h"
#include "transport/shm/staging_areas.h"

namespace horoscale {

struct ShmConfig {
  int rank = 0;
  int size = 1;
  MemoryOptions memory;
  size_t arena_bytes = Arena::kDefaultBytes;
  MeshConfig mesh;
};

// A forked child must not use it, because it shares the memory with its parent.
class ShmTransport final : public MemoryTransport {
 public:
  // Connects to all other ranks of the host, which do the same; returns when all links are up.
  // Frames to ranks of other hosts are not allowed.
  static Result<std::unique_ptr<ShmTransport>> Create(const ShmConfig& config, Store& store);

  void Sleep(double seconds) override;
  void Wake() override { own_->wake.Signal(); }
  Result<std::byte*> AllocateShared(size_t bytes) override;
  void FreeShared(std::byte* memory) override;
  int64_t SharedOffset(const std::byte* memory, size_t bytes) const override;
  std::byte* SharedAddress(int rank, int64_t offset, size_t bytes) const override;
  bool ReadMemory(int rank, uint64_t address, std::span<std::byte> into) override;
  StagingAreas* StagingWith(int rank) override;
  void GiveBackIdle(double now) override { staging_.GiveBackIdle(now); }
  void Close(std::span<const std::byte> last_frame, double seconds) override;

  // Makes Sleep() return when the descriptor is readable.
  Status WakeOn(int fd);

  // Descriptors that become readable when a peer exits. Any thread.
  std::vector<int> EndDescriptors() const;
  // Checks for exited peers now, even if they were checked recently.
  void LookAtPeers() { LookAtDescriptors(0); }

 private:
  // Resources of this rank, at a fixed address because the base class has pointers into it.
  struct Own {
    std::unique_ptr<Arena> arena;
    EventFd doorbell;  // rung by peers
    EventFd wake;      // Wake()
    Poller poller;     // the two above, and sockets and pidfds of running peers
  };

  static Result<std::unique_ptr<Own>> MakeOwn(const ShmConfig& config);
  ShmTransport(const ShmConfig& config, std::unique_ptr<Own> own, std::map<int, ShmLink> links,
               const std::map<int, std::byte*>& rings);
  Status Watch();

  bool CanReadPrivate(int rank) const override;
  bool CanBeRead(const std::byte* memory, size_t bytes) const override;
  Status ReadPrivate(int rank, uint64_t address, std::byte* to, size_t bytes) const override;
  void CheckPeers() override;
  // Waits for a descriptor and records exited peers; returns whether Wake() was called.
  bool LookAtDescriptors(double seconds);
  void OnPeerEnd(int rank);
  void Unwatch(const ShmLink& link);

  std::unique_ptr<Own> own_;
  std::map<int, ShmLink> links_;
  StagingAreas staging_{*this};
  uint32_t polls_ = 0;
  int64_t last_check_ns_ = 0;
};

}  // namespace horoscale
