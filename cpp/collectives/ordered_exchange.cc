#include "collectives/ordered_exchange.h"

#include <map>
#include <utility>

namespace horoscale {
namespace {

class OrderedMemory final : public SharedMemory {
 public:
  OrderedMemory(const SharedMemory& base, std::vector<uint32_t> members)
      : base_(base), members_(std::move(members)) {}
  int64_t OffsetOf(const std::byte* memory, size_t bytes) const override {
    return base_.OffsetOf(memory, bytes);
  }
  std::byte* AddressOf(uint32_t position, int64_t offset, size_t bytes) const override {
    return base_.AddressOf(members_[position], offset, bytes);
  }
  bool ReadsPrivate() const override { return base_.ReadsPrivate(); }
  bool CanBeRead(const std::byte* memory, size_t bytes) const override {
    return base_.CanBeRead(memory, bytes);
  }
  Status ReadPrivate(uint32_t position, uint64_t address, std::byte* to,
                     size_t bytes) const override {
    return base_.ReadPrivate(members_[position], address, to, bytes);
  }

 private:
  const SharedMemory& base_;
  const std::vector<uint32_t> members_;
};

class OrderedCollective final : public Collective {
 public:
  OrderedCollective(Exchange& exchange, std::span<const uint32_t> positions,
                    const std::function<std::unique_ptr<Collective>(Exchange& ordered)>& make)
      : exchange_(exchange, positions), collective_(make(exchange_)) {
    exchange_.PassOnRounds();
  }

  Result<Progress> Step() override {
    auto progress = collective_->Step();
    exchange_.PassOnRounds();
    return progress;
  }

 private:
  OrderedExchange exchange_;
  const std::unique_ptr<Collective> collective_;
};

}  // namespace

OrderedExchange::OrderedExchange(Exchange& base, std::span<const uint32_t> positions)
    : base_(base), self_(positions[base.self()]), members_(positions.size()) {
  next_round = base.next_round;
  sealed = base.sealed;
  for (uint32_t member = 0; member < positions.size(); ++member) {
    members_[positions[member]] = member;
  }
  // Hosts are renumbered in the order of their first positions.
  std::map<uint32_t, uint32_t> numbers;
  for (const uint32_t member : members_) {
    if (base.hosts().empty()) break;
    const auto next = static_cast<uint32_t>(numbers.size());
    hosts_.push_back(numbers.try_emplace(base.hosts()[member], next).first->second);
  }
  if (base.shared_memory() != nullptr) {
    memory_ = std::make_unique<OrderedMemory>(*base.shared_memory(), members_);
  }
}

void OrderedExchange::Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) {
  extents_.resize(extents.size());
  for (uint32_t position = 0; position < extents.size(); ++position) {
    extents_[members_[position]] = extents[position];
  }
  const bool before = std::exchange(base_.sealed, sealed);
  base_.Publish(round, bytes, extents_);
  base_.sealed = before;
}

std::unique_ptr<Collective> MakeOrdered(
    Exchange& exchange, std::span<const uint32_t> positions,
    const std::function<std::unique_ptr<Collective>(Exchange& ordered)>& make) {
  return std::make_unique<OrderedCollective>(exchange, positions, make);
}

}  // namespace horoscale
