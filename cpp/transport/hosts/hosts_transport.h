// HostsTransport: shared memory between the ranks of a host, TCP between hosts. It sleeps in the
// shared-memory part, which the TCP part's sockets wake.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/hosts/loss_spread.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace horoscale {

class HostsTransport final : public Transport {
 public:
  // `hosts[r]` is the host of rank r, numbered 0, 1, … in the order of the hosts' lowest ranks.
  static Result<std::unique_ptr<Transport>> Create(std::unique_ptr<ShmTransport> local,
                                                   std::unique_ptr<TcpTransport> remote,
                                                   std::vector<uint32_t> hosts);
  ~HostsTransport() override;

  int rank() const override { return local_->rank(); }
  int size() const override { return local_->size(); }
  std::vector<uint32_t> HostsOf(std::span<const int> ranks) const override;
  void Send(int to_rank, const FrameHeader& header, std::span<const std::byte> payload) override;
  bool Poll(TransportSink& sink) override;
  bool HasUnsent() const override { return local_->HasUnsent() || remote_->HasUnsent(); }
  Result<std::unique_ptr<Exchange>> Open(ChannelId channel, std::span<const int> ranks) override;
  void Forget(ChannelId channel) override {
    local_->Forget(channel);
    remote_->Forget(channel);
  }
  void Arm() override {
    remote_->Arm();
    local_->Arm();
  }
  void Sleep(double seconds) override { local_->Sleep(seconds); }
  void Disarm() override { local_->Disarm(); }
  void Wake() override { local_->Wake(); }
  Result<std::byte*> AllocateShared(size_t bytes) override { return local_->AllocateShared(bytes); }
  void FreeShared(std::byte* memory) override { local_->FreeShared(memory); }
  int64_t SharedOffset(const std::byte* memory, size_t bytes) const override {
    return local_->SharedOffset(memory, bytes);
  }
  std::byte* SharedAddress(int rank, int64_t offset, size_t bytes) const override {
    return IsLocal(rank) ? local_->SharedAddress(rank, offset, bytes) : nullptr;
  }
  bool ReadMemory(int rank, uint64_t address, std::span<std::byte> into) override {
    return IsLocal(rank) && local_->ReadMemory(rank, address, into);
  }
  StagingAreas* StagingWith(int rank) override {
    return IsLocal(rank) ? local_->StagingWith(rank) : nullptr;
  }
  void Ring(int rank) override { local_->Ring(rank); }
  void GiveBackIdle(double now) override { local_->GiveBackIdle(now); }
  void CallOnEnd(std::function<void()> look) override;
  std::vector<int> AwaitLinks(double seconds) override;
  TransportCounters counters() const override;
  std::vector<std::pair<int, uint64_t>> LinkBytes() const override { return remote_->LinkBytes(); }
  void Close(std::span<const std::byte> last_frame, double seconds) override;

 private:
  HostsTransport(std::unique_ptr<ShmTransport> local, std::unique_ptr<TcpTransport> remote,
                 std::vector<uint32_t> hosts);
  bool IsLocal(int other) const {
    return hosts_[static_cast<size_t>(other)] == hosts_[static_cast<size_t>(rank())];
  }

  const std::unique_ptr<ShmTransport> local_;
  // Sends chunks from the local part's memory, so it must be destroyed first.
  const std::unique_ptr<TcpTransport> remote_;
  const std::vector<uint32_t> hosts_;
  LossSpread losses_;
  std::atomic<bool> has_ends_{false};  // a descriptor that signals a loss was closed
};

}  // namespace horoscale
