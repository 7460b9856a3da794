#include "transport/mpi/mpi_exchange.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace horoscale {
namespace {

constexpr std::align_val_t kPage{4096};

}  // namespace

std::unique_ptr<MpiExchange> MpiExchange::Create(ChannelId channel, std::span<const int> ranks,
                                                 uint32_t self, MpiPost* post,
                                                 TransportCounters* counters,
                                                 std::function<void()> on_destroy) {
  const size_t bytes = ranks.size() * kBanks * kChunkBytes;
  void* const memory = ::operator new(bytes, kPage, std::nothrow);
  if (memory == nullptr) return nullptr;
  std::unique_ptr<MpiExchange> exchange(
      new MpiExchange(channel, ranks, self, post, counters, std::move(on_destroy)));
  exchange->memory_->bytes = {static_cast<std::byte*>(memory),
                              [](std::byte* p) { ::operator delete(p, kPage); }};
  return exchange;
}

MpiExchange::MpiExchange(ChannelId channel, std::span<const int> ranks, uint32_t self,
                         MpiPost* post, TransportCounters* counters,
                         std::function<void()> on_destroy)
    : channel_(channel),
      ranks_(ranks.begin(), ranks.end()),
      self_(self),
      memory_(std::make_shared<Memory>()),
      unopened_(static_cast<uint32_t>(ranks.size()) - 1),
      post_(post),
      counters_(counters),
      on_destroy_(std::move(on_destroy)) {
  memory_->members.resize(ranks.size());
}

MpiExchange::~MpiExchange() { on_destroy_(); }

std::byte* MpiExchange::Reserve(uint64_t round) {
  assert(round >= At(self_).published);
  if (unopened_ > 0) return nullptr;
  const uint64_t needed = round < kBanks ? 0 : round + 1 - kBanks;
  for (const Member& member : memory_->members) {
    if (member.released < needed) return nullptr;
  }
  if (At(self_).banks[round % kBanks].unsent > 0) return nullptr;
  return Chunk(self_, round);
}

void MpiExchange::Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) {
  assert(round >= At(self_).published && bytes <= kChunkBytes);
  Member& own = At(self_);
  Bank& bank = own.banks[round % kBanks];
  bank.round = round;
  bank.used = bank.arrived = true;
  own.published = round + 1;
  for (uint32_t m = 0; m < size(); ++m) {
    if (m == self_) continue;
    const Extent extent = extents.empty() ? Extent{0, bytes} : extents[m];
    const std::span<const std::byte> data(Chunk(self_, round) + extent.offset, extent.bytes);
    const bool is_small = extent.bytes <= kInlineBytes;
    auto header = Header(is_small ? MpiMessageType::kChunk : MpiMessageType::kAnnounce, round);
    header.bytes = static_cast<uint32_t>(extent.bytes);
    header.offset = extent.offset;
    post_->PostMessage(ranks_[m], header, is_small ? data : std::span<const std::byte>());
    if (!is_small) post_->PostData(ranks_[m], data, memory_, &bank.unsent);
    counters_->data_bytes_sent += extent.bytes;
  }
}

const std::byte* MpiExchange::Peek(uint64_t round, uint32_t m) {
  const Member& member = At(m);
  if (member.published <= round) return nullptr;
  const Bank& bank = member.banks[round % kBanks];
  if (bank.used && bank.round == round && !bank.arrived) return nullptr;
  return Chunk(m, round);
}

void MpiExchange::Release(uint64_t round) {
  Member& own = At(self_);
  if (round < own.released) return;
  own.released = round + 1;
  for (uint32_t m = 0; m < size(); ++m) {
    if (m == self_) continue;
    post_->PostMessage(ranks_[m], Header(MpiMessageType::kReleased, own.released), {});
  }
}

void MpiExchange::OnOpened(uint32_t m) {
  Member& member = At(m);
  if (member.opened) return;
  member.opened = true;
  --unopened_;
}

void MpiExchange::OnReleased(uint32_t m, uint64_t rounds) {
  At(m).released = std::max(At(m).released, rounds);
}

std::byte* MpiExchange::Accept(uint32_t m, const MpiMessageHeader& header) {
  Member& member = At(m);
  const uint64_t end = At(self_).released + kBanks;  // what we have granted
  const bool fits = header.offset <= kChunkBytes && header.bytes <= kChunkBytes - header.offset;
  if (m == self_ || !fits || header.round < member.published || header.round >= end) return nullptr;
  Bank& bank = member.banks[header.round % kBanks];
  bank.round = header.round;
  bank.used = true;
  bank.arrived = false;
  member.published = header.round + 1;
  return Chunk(m, header.round) + header.offset;
}

void MpiExchange::OnArrived(uint32_t m, uint64_t round) {
  Bank& bank = At(m).banks[round % kBanks];
  if (bank.round == round) bank.arrived = true;
}

}  // namespace horoscale
