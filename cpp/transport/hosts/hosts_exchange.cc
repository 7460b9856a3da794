#include "transport/hosts/hosts_exchange.h"

#include <algorithm>
#include <cassert>

namespace horoscale {

size_t HostsExchange::chunk_bytes() const {
  return std::min(local_->chunk_bytes(), remote_->chunk_bytes());
}

// The smaller number, so that a chunk has been sent before its bank in shared memory is reused.
uint32_t HostsExchange::banks() const { return std::min(local_->banks(), remote_->banks()); }

std::byte* HostsExchange::Reserve(uint64_t round) {
  return reserved_ = remote_->MayPublish(round) ? local_->Reserve(round) : nullptr;
}

void HostsExchange::Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) {
  assert(reserved_ != nullptr);
  remote_->sealed = sealed;
  remote_->PublishFrom(reserved_, round, bytes, extents);
  reserved_ = nullptr;
  if (extents.empty()) return local_->Publish(round, bytes);
  for (uint32_t m = 0; m < size(); ++m) {
    if (IsLocal(m)) local_extents_[position_[m]] = extents[m];
  }
  local_->Publish(round, bytes, local_extents_);
}

bool HostsExchange::PublishInPlace(uint64_t round, const std::byte* chunk, size_t bytes,
                                   std::span<const Extent> extents) {
  assert(reserved_ != nullptr);
  for (uint32_t m = 0; m < size(); ++m) {
    const bool reads = extents.empty() || extents[m].bytes > 0;
    if (m != self() && IsLocal(m) && reads) return false;
  }
  remote_->sealed = sealed;
  if (!remote_->PublishInPlace(round, chunk, bytes, extents)) return false;
  reserved_ = nullptr;
  return true;
}

const std::byte* HostsExchange::Peek(uint64_t round, uint32_t member) {
  return IsLocal(member) ? local_->Peek(round, position_[member]) : remote_->Peek(round, member);
}

void HostsExchange::Release(uint64_t round) {
  local_->Release(round);
  remote_->Release(round);
}

void HostsExchange::Withdraw() {
  local_->Withdraw();
  remote_->Withdraw();
}

}  // namespace horoscale
