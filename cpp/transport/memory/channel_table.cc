#include "transport/memory/channel_table.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

namespace horoscale {
namespace {

// The host's shared memory, indexed by member instead of rank.
class ChannelMemory final : public SharedMemory {
 public:
  ChannelMemory(ChannelHost* host, std::span<const int> ranks)
      : host_(host), ranks_(ranks.begin(), ranks.end()) {}
  int64_t OffsetOf(const std::byte* memory, size_t bytes) const override {
    return host_->OwnOffset(memory, bytes);
  }
  std::byte* AddressOf(uint32_t member, int64_t offset, size_t bytes) const override {
    return host_->PeerBlock(ranks_[member], offset, bytes);
  }
  bool ReadsPrivate() const override {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [this](int rank) { return host_->CanReadPrivate(rank); });
  }
  bool CanBeRead(const std::byte* memory, size_t bytes) const override {
    return host_->CanBeRead(memory, bytes);
  }
  Status ReadPrivate(uint32_t member, uint64_t address, std::byte* to,
                     size_t bytes) const override {
    return host_->ReadPrivate(ranks_[member], address, to, bytes);
  }

 private:
  ChannelHost* host_;
  const std::vector<int> ranks_;
};

uint32_t IndexOf(const std::vector<int>& ranks, int rank) {
  return static_cast<uint32_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

ChannelTable::ChannelTable(int rank, const BankGeometry& geometry, ChannelHost* host,
                           TransportCounters* counters)
    : rank_(rank), geometry_(geometry), host_(host), counters_(counters) {}

ChannelTable::~ChannelTable() {
  for (auto& [id, channel] : channels_) {
    if (channel.exchange != nullptr) channel.exchange->Orphan();
  }
}

Result<std::unique_ptr<Exchange>> ChannelTable::Open(ChannelId id, std::span<const int> ranks) {
  assert(std::is_sorted(ranks.begin(), ranks.end()));
  assert(std::binary_search(ranks.begin(), ranks.end(), rank_));
  const auto known = channels_.find(id);
  if (known != channels_.end() && !known->second.ranks.empty()) {
    return Status::InvalidArgument(Describe(id) + " is already open");
  }
  if (known != channels_.end()) {
    for (const auto& [from, block] : known->second.peer_blocks) {
      if (std::binary_search(ranks.begin(), ranks.end(), from)) continue;
      return Status::Protocol("rank " + std::to_string(from) + " has opened " + Describe(id) +
                              ", but is not a member of it on this rank");
    }
  }
  Result<std::byte*> block = host_->AllocateBlock(BlockBytes(geometry_));
  if (!block.ok()) return block.status();

  Channel& channel = channels_[id];
  for (const auto& [from, peer_block] : channel.peer_blocks) early_.Remove(from);
  channel.ranks.assign(ranks.begin(), ranks.end());
  channel.block = *block;
  std::vector<Doorbell*> doorbells;
  for (const int rank : ranks) {
    doorbells.push_back(rank == rank_ ? nullptr : host_->DoorbellOf(rank));
  }
  auto exchange = std::make_unique<BankExchange>(
      geometry_, IndexOf(channel.ranks, rank_), *block, std::move(doorbells),
      std::make_unique<const ChannelMemory>(host_, ranks), counters_, [this, id] { Close(id); });
  channel.exchange = exchange.get();
  for (const auto& [rank, peer_block] : channel.peer_blocks) {
    exchange->Attach(IndexOf(channel.ranks, rank), peer_block);
  }
  for (const int rank : ranks) {
    if (rank == rank_) continue;
    if (host_->IsLost(rank)) {
      channel.closed.insert(rank);
    } else {
      host_->Notify(rank, id, BankNotice::Type::kOpened, *block);
    }
  }
  return std::unique_ptr<Exchange>(std::move(exchange));
}

Status ChannelTable::OnNotice(int from_rank, ChannelId id, std::span<const std::byte> payload,
                              bool is_over) {
  BankNotice notice;
  if (payload.size() != sizeof(notice)) {
    return Status::Protocol("bank notice of invalid size: " + std::to_string(payload.size()) +
                            " bytes");
  }
  std::memcpy(&notice, payload.data(), sizeof(notice));
  if (is_over && !channels_.contains(id)) return {};
  Channel& channel = channels_[id];
  if (!channel.ranks.empty() &&
      !std::binary_search(channel.ranks.begin(), channel.ranks.end(), from_rank)) {
    return Status::Protocol("bank notice for " + Describe(id) +
                            " from a rank that is not a member");
  }
  switch (notice.type) {
    case BankNotice::Type::kOpened:
      return OnOpened(from_rank, channel, notice.offset);
    case BankNotice::Type::kClosed:
      if (!channel.peer_blocks.contains(from_rank) || !channel.closed.insert(from_rank).second) {
        return Status::Protocol(Describe(id) + " was closed, but is not open");
      }
      ForgetIfUnused(id);
      return {};
  }
  return Status::Protocol("bank notice with an unknown type");
}

Status ChannelTable::OnOpened(int from_rank, Channel& channel, int64_t offset) {
  std::byte* block = host_->PeerBlock(from_rank, offset, BlockBytes(geometry_));
  if (block == nullptr || reinterpret_cast<uintptr_t>(block) % alignof(BankControl) != 0) {
    return Status::Protocol("banks announced at offset " + std::to_string(offset) +
                            ", which is outside of the sender's memory");
  }
  if (!channel.peer_blocks.try_emplace(from_rank, block).second) {
    return Status::Protocol("the banks of a process set were announced twice");
  }
  if (channel.exchange != nullptr) {
    channel.exchange->Attach(IndexOf(channel.ranks, from_rank), block);
  }
  return channel.ranks.empty() ? early_.Add(from_rank) : Status();
}

void ChannelTable::Forget(ChannelId id) {
  const auto at = channels_.find({id.process_set, id.incarnation});
  if (at != channels_.end() && at->second.ranks.empty()) ForgetEarly(at);
}

void ChannelTable::ForgetEarly(std::map<ChannelId, Channel>::iterator at) {
  for (const auto& [from, block] : at->second.peer_blocks) early_.Remove(from);
  channels_.erase(at);
}

void ChannelTable::Close(ChannelId id) {
  Channel& channel = channels_.at(id);
  channel.exchange = nullptr;
  for (const int rank : channel.ranks) {
    if (rank == rank_ || host_->IsLost(rank)) continue;
    host_->Notify(rank, id, BankNotice::Type::kClosed, nullptr);
  }
  ForgetIfUnused(id);
}

void ChannelTable::ForgetIfUnused(ChannelId id) {
  const auto at = channels_.find(id);
  const Channel& channel = at->second;
  if (channel.exchange != nullptr || channel.ranks.empty()) return;
  if (channel.closed.size() + 1 < channel.ranks.size()) return;
  host_->FreeBlock(channel.block);
  channels_.erase(at);
}

void ChannelTable::OnRankLost(int rank) {
  std::vector<ChannelId> concerned;
  for (auto& [id, channel] : channels_) {
    if (std::binary_search(channel.ranks.begin(), channel.ranks.end(), rank)) {
      channel.closed.insert(rank);
      concerned.push_back(id);
    }
  }
  for (const ChannelId id : concerned) ForgetIfUnused(id);
  // Channels that only it and other lost ranks have opened are not read any more.
  for (auto at = channels_.begin(); at != channels_.end();) {
    const auto next = std::next(at);
    if (at->second.ranks.empty()) {
      at->second.peer_blocks.erase(rank);
      if (at->second.peer_blocks.empty()) ForgetEarly(at);
    }
    at = next;
  }
  early_.OnRankLost(rank);
}

}  // namespace horoscale
