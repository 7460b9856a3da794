// HostsExchange: the data plane of a process set that spans hosts. A chunk is stored in memory that
// the ranks of the host share. They read it in place, and the extents for ranks of other hosts are
// sent from there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/message/message_exchange.h"

namespace horoscale {

class HostsExchange final : public Exchange {
 public:
  // `local` contains the set's members on this host, in order. hosts() returns `hosts`. `position`
  // is the index of each local member among the local ones.
  HostsExchange(std::unique_ptr<Exchange> local, std::unique_ptr<MessageExchange> remote,
                std::vector<uint32_t> hosts, std::vector<uint32_t> position)
      : local_(std::move(local)),
        remote_(std::move(remote)),
        hosts_(std::move(hosts)),
        position_(std::move(position)),
        local_extents_(local_->size()) {}

  uint32_t size() const override { return remote_->size(); }
  uint32_t self() const override { return remote_->self(); }
  std::span<const uint32_t> hosts() const override { return hosts_; }
  size_t chunk_bytes() const override;
  uint32_t banks() const override;
  std::byte* Reserve(uint64_t round) override;
  void Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) override;
  // Not possible for members of this host, which read chunks in shared memory.
  bool PublishInPlace(uint64_t round, const std::byte* chunk, size_t bytes,
                      std::span<const Extent> extents) override;
  bool HasLeft(uint64_t round) const override { return remote_->HasLeft(round); }
  const std::byte* Peek(uint64_t round, uint32_t member) override;
  void Release(uint64_t round) override;
  void Withdraw() override;

 private:
  bool IsLocal(uint32_t member) const { return hosts_[member] == hosts_[self()]; }

  const std::unique_ptr<Exchange> local_;
  const std::unique_ptr<MessageExchange> remote_;
  const std::vector<uint32_t> hosts_;
  const std::vector<uint32_t> position_;
  std::vector<Extent> local_extents_;
  std::byte* reserved_ = nullptr;  // the chunk to be published next
};

}  // namespace horoscale
