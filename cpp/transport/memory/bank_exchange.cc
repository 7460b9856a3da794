#include "transport/memory/bank_exchange.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

namespace horoscale {

BankExchange::BankExchange(const BankGeometry& geometry, uint32_t self, std::byte* own,
                           std::vector<Doorbell*> doorbells,
                           std::unique_ptr<const SharedMemory> shared_memory,
                           TransportCounters* counters, std::function<void()> on_destroy)
    : geometry_(geometry),
      self_(self),
      members_(doorbells.size()),
      unattached_(static_cast<uint32_t>(doorbells.size())),
      shared_memory_(std::move(shared_memory)),
      counters_(counters),
      on_destroy_(std::move(on_destroy)) {
  for (uint32_t m = 0; m < size(); ++m) members_[m].doorbell = doorbells[m];
  Attach(self, own);
}

BankExchange::~BankExchange() { on_destroy_(); }

void BankExchange::Attach(uint32_t member, std::byte* block) {
  assert(members_[member].control == nullptr);
  members_[member].control = reinterpret_cast<BankControl*>(block);
  members_[member].chunks = block + kBankControlBytes;
  --unattached_;
}

std::byte* BankExchange::Reserve(uint64_t round) {
  assert(round >= published_);
  if (unattached_ > 0) return nullptr;
  const uint64_t needed = round < geometry_.banks ? 0 : round + 1 - geometry_.banks;
  if (!AllHaveReleased(needed)) {
    if (waits_for_release_) return nullptr;
    // From now on the others ring when they release. Check once more, because it may have just
    // happened.
    waits_for_release_ = true;
    own().waits_for_release.store(1);
    if (!AllHaveReleased(needed)) return nullptr;
  }
  if (waits_for_release_) {
    waits_for_release_ = false;
    own().waits_for_release.store(0);
  }
  return Chunk(members_[self_], round);
}

bool BankExchange::AllHaveReleased(uint64_t rounds) {
  if (released_by_all_ >= rounds) return true;
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const Member& member : members_) least = std::min(least, member.control->consumed.load());
  released_by_all_ = least;
  return least >= rounds;
}

void BankExchange::Publish(uint64_t round, size_t bytes, std::span<const Extent>) {
  assert(round >= published_ && bytes <= geometry_.chunk_bytes);
  published_ = round + 1;
  own().published.store(published_);
  counters_->data_bytes_sent += bytes;
  for (uint32_t m = 0; m < size(); ++m) {
    if (m != self_) members_[m].doorbell->Ring();
  }
}

const std::byte* BankExchange::Peek(uint64_t round, uint32_t m) {
  Member& member = members_[m];
  if (member.seen_published <= round) {
    if (member.control == nullptr) return nullptr;
    member.seen_published = member.control->published.load();
    if (member.seen_published <= round) return nullptr;
  }
  return Chunk(member, round);
}

void BankExchange::Release(uint64_t round) {
  if (round < consumed_) return;
  consumed_ = round + 1;
  own().consumed.store(consumed_);
  for (uint32_t m = 0; m < size(); ++m) {
    const Member& member = members_[m];
    if (m == self_ || member.control == nullptr) continue;
    if (member.control->waits_for_release.load() != 0) member.doorbell->Ring();
  }
}

// Later writes of the caller to its tensors are ordered after the mark, and readers of such data
// see the mark: the fences guarantee both.
void BankExchange::Withdraw() {
  own().has_withdrawn.store(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool BankExchange::HasWithdrawn(uint32_t m) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return members_[m].control->has_withdrawn.load() != 0;
}

}  // namespace horoscale
