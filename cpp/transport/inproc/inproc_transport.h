// One rank's transport over an InprocFabric.
#pragma once

#include <memory>

#include "transport/inproc/inproc_fabric.h"
#include "transport/memory/memory_transport.h"
#include "transport/set_hosts.h"

namespace horoscale {

struct InprocFabric::Rank {
  Rank(EventFd its_doorbell, EventFd its_wake)
      : doorbell(std::move(its_doorbell)), wake(std::move(its_wake)) {}

  alignas(64) SleepFlag sleeping{0};
  const EventFd doorbell;  // rung by peers
  const EventFd wake;      // for Wake() and the exit of a peer
  // Guarded by the fabric's mutex.
  bool ended = false;
  std::string how;
};

class InprocTransport final : public MemoryTransport {
 public:
  InprocTransport(std::shared_ptr<InprocFabric> fabric, int rank);

  std::vector<uint32_t> HostsOf(std::span<const int> ranks) const override {
    return fabric_->hosts_.empty() ? std::vector<uint32_t>() : SetHosts(ranks, fabric_->hosts_);
  }
  void Sleep(double seconds) override;
  void Wake() override;
  Result<std::byte*> AllocateShared(size_t bytes) override;
  void FreeShared(std::byte* memory) override;
  int64_t SharedOffset(const std::byte* memory, size_t bytes) const override;
  std::byte* SharedAddress(int rank, int64_t offset, size_t bytes) const override;
  void Close(std::span<const std::byte> last_frame, double seconds) override;

 private:
  bool CanReadPrivate(int) const override { return true; }
  bool CanBeRead(const std::byte*, size_t) const override { return true; }
  Status ReadPrivate(int rank, uint64_t address, std::byte* to, size_t bytes) const override;
  void CheckPeers() override;
  // Whether [memory, memory + bytes) is in one block of the rank.
  bool Holds(int rank, const std::byte* memory, size_t bytes) const;

  std::shared_ptr<InprocFabric> fabric_;
  InprocFabric::Rank& self_;
  uint32_t seen_ended_ = 0;
};

}  // namespace horoscale
