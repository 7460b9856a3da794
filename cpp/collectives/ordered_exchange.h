// OrderedExchange: an exchange whose members are numbered by their positions in another order.
//
// Collectives that move data follow the order of a process set by running on one. Those that fold
// values don't: the order of a sum is that of the ranks, whatever order a set has.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "collectives/collective.h"
#include "transport/exchange.h"

namespace horoscale {

class OrderedExchange final : public Exchange {
 public:
  // positions[m]: of member m of `base`, which outlives this.
  OrderedExchange(Exchange& base, std::span<const uint32_t> positions);

  uint32_t size() const override { return base_.size(); }
  uint32_t self() const override { return self_; }
  std::span<const uint32_t> hosts() const override { return hosts_; }
  size_t chunk_bytes() const override { return base_.chunk_bytes(); }
  uint32_t banks() const override { return base_.banks(); }
  std::byte* Reserve(uint64_t round) override { return base_.Reserve(round); }
  void Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) override;
  const std::byte* Peek(uint64_t round, uint32_t position) override {
    return base_.Peek(round, members_[position]);
  }
  void Release(uint64_t round) override { base_.Release(round); }
  const SharedMemory* shared_memory() const override { return memory_.get(); }
  void Withdraw() override { base_.Withdraw(); }
  bool HasWithdrawn(uint32_t position) const override {
    return base_.HasWithdrawn(members_[position]);
  }

  // What is used up here is used up in `base`.
  void PassOnRounds() { base_.next_round = next_round; }

 private:
  Exchange& base_;
  const uint32_t self_;
  std::vector<uint32_t> members_;  // by position
  std::vector<uint32_t> hosts_;
  std::vector<Extent> extents_;  // of members
  std::unique_ptr<const SharedMemory> memory_;
};

// The collective that `make` makes, of members that are numbered by their positions.
std::unique_ptr<Collective> MakeOrdered(
    Exchange& exchange, std::span<const uint32_t> positions,
    const std::function<std::unique_ptr<Collective>(Exchange& ordered)>& make);

}  // namespace horoscale
