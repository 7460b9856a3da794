// A rank of this host announces banks in any order, while sets open and close here. Each
// announcement is refused or points into the sender's memory, and no block is freed twice.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "fuzz/channel_orders.h"
#include "transport/memory/channel_table.h"

using namespace horoscale;

namespace {

constexpr BankGeometry kGeometry = {.chunk_bytes = 4096, .banks = 4};
constexpr size_t kBlock = BlockBytes(kGeometry);
constexpr size_t kBlocks = 4;

// The memory of one rank: blocks that it may use for its sets.
struct Memory {
  alignas(4096) std::byte bytes[kBlocks * kBlock] = {};
};

class Rank final : public ChannelHost {
 public:
  Rank() { std::memset(second_->bytes, 1, sizeof(Memory)); }  // its counters are ahead

  Result<std::byte*> AllocateBlock(size_t bytes) override {
    if (bytes > kBlock) abort();
    for (size_t i = 0; i < kBlocks; ++i) {
      if (!used_.insert(own_->bytes + i * kBlock).second) continue;
      std::memset(own_->bytes + i * kBlock, 0, kBlock);
      return own_->bytes + i * kBlock;
    }
    return Status::Internal("no block is free");
  }
  void FreeBlock(std::byte* block) override {
    if (used_.erase(block) != 1) abort();
  }
  std::byte* PeerBlock(int rank, int64_t offset, size_t bytes) override {
    if (offset < 0 || bytes > sizeof(Memory)) return nullptr;
    if (static_cast<size_t>(offset) > sizeof(Memory) - bytes) return nullptr;
    return (rank == 0 ? first_ : second_)->bytes + offset;
  }
  int64_t OwnOffset(const std::byte*, size_t) const override { return -1; }
  void Notify(int, ChannelId, BankNotice::Type, const std::byte*) override {}
  bool IsLost(int rank) const override { return lost_.contains(rank); }
  Doorbell* DoorbellOf(int) override { return &doorbell_; }

  void OpenOrClose(uint32_t set) {
    if (exchanges_[set] != nullptr) return exchanges_[set].reset();
    auto opened = table_.Open({set, incarnations_[set]++}, kMembers[set]);
    if (opened.ok()) exchanges_[set] = opened.TakeValue();
  }

  void UseExchange(uint32_t set) {
    Exchange* const exchange = exchanges_[set].get();
    UseRound(exchange, kGeometry.chunk_bytes - 1,
             [exchange](uint64_t round) { exchange->Publish(round, 8); });
  }

  bool Take(int from, uint8_t order, std::span<const std::byte> notice) {
    const ChannelId channel = {order / 4u % kSets, static_cast<uint32_t>(order >> 6)};
    if (IsLost(from) || table_.OnNotice(from, channel, notice, false).ok()) return true;
    lost_.insert(from);
    table_.OnRankLost(from);
    return true;  // without that rank
  }

 private:
  std::unique_ptr<Memory> own_ = std::make_unique<Memory>();
  std::unique_ptr<Memory> first_ = std::make_unique<Memory>();
  std::unique_ptr<Memory> second_ = std::make_unique<Memory>();
  std::set<std::byte*> used_;
  std::set<int> lost_;
  SleepFlag sleeping_{0};
  EventFd event_ = EventFd::Create().TakeValue();
  Doorbell doorbell_{&sleeping_, &event_};
  TransportCounters counters_;
  ChannelTable table_{kSelf, kGeometry, this, &counters_};
  std::unique_ptr<Exchange> exchanges_[kSets];
  uint32_t incarnations_[kSets] = {};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Rank rank;
  FollowOrders<BankNotice>({data, size}, &rank);
  return 0;
}
