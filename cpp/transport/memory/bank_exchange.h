// BankExchange: the Exchange over memory that all members can access.
//
// Every member owns one block: two counters and `banks` chunks. Only the owner writes to a block;
// the others read the counters and chunks.
//
//     published   rounds below it are visible        read by Peek() of the others
//     consumed    rounds below it are released here  read by Reserve() of the others
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "transport/exchange.h"
#include "transport/memory/doorbell.h"
#include "transport/transport.h"

namespace horoscale {

struct BankGeometry {
  size_t chunk_bytes = 256 << 10;  // a multiple of 4096
  uint32_t banks = 4;              // at least 4
  bool operator==(const BankGeometry&) const = default;
};

// The start of a block; zeros are an unused block. Each counter has its own cache line, because
// members wait for them in different calls.
struct BankControl {
  alignas(64) std::atomic<uint64_t> published;
  alignas(64) std::atomic<uint64_t> consumed;
  alignas(64) std::atomic<uint32_t> waits_for_release;  // ring me when you release
  std::atomic<uint32_t> has_withdrawn;
};
inline constexpr size_t kBankControlBytes = 4096;
static_assert(sizeof(BankControl) <= kBankControlBytes);

constexpr size_t BlockBytes(const BankGeometry& geometry) {
  return kBankControlBytes + geometry.banks * geometry.chunk_bytes;
}

class BankExchange : public Exchange {
 public:
  // `own` is this member's block, zeroed. doorbells[m] wakes member m (null for self). `counters`
  // and the doorbells belong to the transport. `on_destroy` is called last.
  BankExchange(const BankGeometry& geometry, uint32_t self, std::byte* own,
               std::vector<Doorbell*> doorbells, std::unique_ptr<const SharedMemory> shared_memory,
               TransportCounters* counters, std::function<void()> on_destroy);
  ~BankExchange() override;

  BankExchange(const BankExchange&) = delete;
  BankExchange& operator=(const BankExchange&) = delete;

  // The transport was destroyed: the exchange may only be destroyed afterwards.
  void Orphan() {
    on_destroy_ = [] {};
  }

  // Sets the block of another member; once per member.
  void Attach(uint32_t member, std::byte* block);

  uint32_t size() const override { return static_cast<uint32_t>(members_.size()); }
  uint32_t self() const override { return self_; }
  size_t chunk_bytes() const override { return geometry_.chunk_bytes; }
  uint32_t banks() const override { return geometry_.banks; }
  std::byte* Reserve(uint64_t round) override;
  void Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) override;
  const std::byte* Peek(uint64_t round, uint32_t member) override;
  void Release(uint64_t round) override;
  const SharedMemory* shared_memory() const override { return shared_memory_.get(); }
  void Withdraw() override;
  bool HasWithdrawn(uint32_t member) const override;

 private:
  struct Member {
    BankControl* control = nullptr;  // null until attached
    std::byte* chunks = nullptr;
    Doorbell* doorbell = nullptr;
    uint64_t seen_published = 0;  // last value read from control->published
  };

  // Updates released_by_all_; whether every member has released the rounds below `rounds`.
  bool AllHaveReleased(uint64_t rounds);
  std::byte* Chunk(const Member& member, uint64_t round) const {
    return member.chunks + (round % geometry_.banks) * geometry_.chunk_bytes;
  }
  BankControl& own() { return *members_[self_].control; }

  const BankGeometry geometry_;
  const uint32_t self_;
  std::vector<Member> members_;
  uint32_t unattached_;
  uint64_t published_ = 0;  // copies of this member's counters
  uint64_t consumed_ = 0;
  uint64_t released_by_all_ = 0;  // rounds below it are released by every member
  bool waits_for_release_ = false;
  const std::unique_ptr<const SharedMemory> shared_memory_;
  TransportCounters* counters_;
  std::function<void()> on_destroy_;
};

}  // namespace horoscale
