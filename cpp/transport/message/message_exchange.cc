#include "transport/message/message_exchange.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

namespace horoscale {
namespace {

constexpr std::align_val_t kPage{4096};
// A busy member notifies others only after this many released rounds, because each notification
// costs both sides a system call. Half of the banks remain available meanwhile.
constexpr uint64_t kToldRounds = MessageExchange::kBanks / 2;

constexpr uint64_t kNoRound = std::numeric_limits<uint64_t>::max();

}  // namespace

std::unique_ptr<MessageExchange> MessageExchange::Create(
    ChannelId channel, std::span<const int> ranks, uint32_t self, std::vector<bool> served,
    std::vector<uint32_t> hosts, MessagePost* post, TransportCounters* counters,
    std::function<void()> on_destroy) {
  const size_t bytes = ranks.size() * kBanks * kChunkBytes;
  // Allocates chunks for all members, including those that another exchange serves, because unused
  // pages cost nothing.
  void* const memory = ::operator new(bytes, kPage, std::nothrow);
  if (memory == nullptr) return nullptr;
  std::unique_ptr<MessageExchange> exchange(
      new MessageExchange(channel, ranks, self, std::move(served), std::move(hosts), post, counters,
                          std::move(on_destroy)));
  exchange->memory_->bytes = {static_cast<std::byte*>(memory),
                              [](std::byte* p) { ::operator delete(p, kPage); }};
  return exchange;
}

MessageExchange::MessageExchange(ChannelId channel, std::span<const int> ranks, uint32_t self,
                                 std::vector<bool> served, std::vector<uint32_t> hosts,
                                 MessagePost* post, TransportCounters* counters,
                                 std::function<void()> on_destroy)
    : channel_(channel),
      ranks_(ranks.begin(), ranks.end()),
      self_(self),
      served_(std::move(served)),
      hosts_(std::move(hosts)),
      memory_(std::make_shared<Memory>()),
      post_(post),
      counters_(counters),
      on_destroy_(std::move(on_destroy)) {
  assert(served_.size() == ranks_.size() && !served_[self_]);
  memory_->members.resize(ranks.size());
}

MessageExchange::~MessageExchange() {
  for (const auto& [member, chunks] : waiting_) {
    if (post_ != nullptr) post_->waiting_chunks -= chunks.size();
  }
  if (post_ != nullptr) {
    Withdraw();
    Owe(false);
  }
  on_destroy_();
}

bool MessageExchange::MayPublish(uint64_t round) const {
  if (unopened_ > 0) return false;
  for (const Member& member : memory_->members) {
    if (member.released < member.sent[round % kBanks]) return false;
  }
  return At(self_).banks[round % kBanks].unsent == 0;
}

std::byte* MessageExchange::Reserve(uint64_t round) {
  assert(round >= published_);
  const bool released = At(self_).released + kBanks > round;  // by this member itself
  return released && MayPublish(round) ? Chunk(self_, round) : nullptr;
}

void MessageExchange::Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) {
  PublishFrom(Chunk(self_, round), round, bytes, extents);
}

void MessageExchange::PublishFrom(const std::byte* chunk, uint64_t round, size_t bytes,
                                  std::span<const Extent> extents) {
  assert(round >= published_ && bytes <= kChunkBytes);
  Bank& bank = At(self_).banks[round % kBanks];
  bank.round = round;
  bank.used = bank.arrived = true;
  bank.borrowed = {};
  published_ = round + 1;
  for (uint32_t m = 0; m < size(); ++m) {
    if (!served_[m]) continue;
    const Extent extent = extents.empty() ? Extent{0, bytes} : extents[m];
    if (!extents.empty() && extent.bytes == 0) continue;
    At(m).sent[round % kBanks] = round + 1;
    auto header = Header(MessageType::kChunk, round);
    header.bytes = static_cast<uint32_t>(extent.bytes);
    header.offset = static_cast<uint32_t>(extent.offset);
    header.sealed = sealed ? 1 : 0;
    Post(m, {header, {chunk + extent.offset, extent.bytes}});
    counters_->data_bytes_sent += extent.bytes;
  }
}

void MessageExchange::Post(uint32_t m, const Waiting& chunk) {
  uint32_t& unsent = At(self_).banks[chunk.header.round % kBanks].unsent;
  if (At(m).opened) {
    return post_->PostChunk(ranks_[m], chunk.header, chunk.data, memory_, &unsent);
  }
  const MessagePost::LinkState state = post_->StateOf(ranks_[m]);
  if (state == MessagePost::LinkState::kLost) return;
  if (state == MessagePost::LinkState::kNone) post_->Reach(ranks_[m]);
  waiting_[m].push_back(chunk);
  ++post_->waiting_chunks;
  ++unsent;
}

std::vector<MessageExchange::Waiting> MessageExchange::TakeWaiting(uint32_t m) {
  auto taken = waiting_.extract(m);
  if (!taken) return {};
  for (const Waiting& chunk : taken.mapped()) {
    --At(self_).banks[chunk.header.round % kBanks].unsent;
    --post_->waiting_chunks;
  }
  return std::move(taken.mapped());
}

bool MessageExchange::PublishInPlace(uint64_t round, const std::byte* chunk, size_t bytes,
                                     std::span<const Extent> extents) {
  if (!post_->CanMoveChunks()) return false;
  PublishFrom(chunk, round, bytes, extents);
  At(self_).banks[round % kBanks].borrowed = {chunk, bytes};
  return true;
}

bool MessageExchange::HasLeft(uint64_t round) const {
  const Bank& bank = At(self_).banks[round % kBanks];
  return bank.round != round || bank.borrowed.empty() || bank.unsent == 0;
}

void MessageExchange::Withdraw() {
  for (Bank& bank : At(self_).banks) {
    const std::span<const std::byte> borrowed = std::exchange(bank.borrowed, {});
    if (borrowed.empty() || bank.unsent == 0) continue;
    std::byte* const copy = Chunk(self_, bank.round);
    std::copy(borrowed.begin(), borrowed.end(), copy);
    for (auto& [member, chunks] : waiting_) {
      for (Waiting& chunk : chunks) {
        if (chunk.header.round != bank.round) continue;
        chunk.data = {copy + (chunk.data.data() - borrowed.data()), chunk.data.size()};
      }
    }
    post_->MoveChunk(&bank.unsent, borrowed.data(), copy);
  }
}

const std::byte* MessageExchange::Peek(uint64_t round, uint32_t m) {
  const Bank& bank = At(m).banks[round % kBanks];
  return bank.arrived && bank.round == round ? Chunk(m, round) : nullptr;
}

void MessageExchange::Release(uint64_t round) {
  Member& own = At(self_);
  if (round < own.released) return;
  own.released = round + 1;
  for (uint32_t m = 0; m < size(); ++m) {
    if (served_[m]) TellReleased(m, Tell::kMuch);
  }
}

void MessageExchange::TellReleased() {
  Owe(false);
  for (uint32_t m = 0; m < size(); ++m) {
    if (served_[m]) TellReleased(m, Tell::kAll);
  }
}

void MessageExchange::Owe(bool owes) {
  if (owes_ == owes) return;
  owes_ = owes;
  post_->owing_exchanges += owes ? 1 : -1;
}

// The released rounds of the member. Members that do not participate in an operation release rounds
// before their chunks arrive.
uint64_t MessageExchange::ReleasedOf(const Member& member) const {
  uint64_t released = std::min(At(self_).released, member.begun);
  for (const Bank& bank : member.banks) {
    if (bank.missing > 0) released = std::min(released, bank.round);
  }
  return released;
}

// Notifies the member if it has sent chunks whose release it does not know.
void MessageExchange::TellReleased(uint32_t m, Tell tell) {
  Member& member = At(m);
  const uint64_t released = ReleasedOf(member);
  uint64_t rounds = 0;  // released here since the first such chunk
  for (const Bank& bank : member.banks) {
    const bool is_news = bank.used && bank.round >= member.told_released && bank.round < released;
    if (is_news) rounds = std::max(rounds, At(self_).released - bank.round);
  }
  if (rounds == 0) return;
  if (tell == Tell::kMuch && rounds < kToldRounds) return Owe(true);
  member.told_released = released;
  post_->PostMessage(ranks_[m], Header(MessageType::kReleased, released));
}

void MessageExchange::OnLinked(uint32_t m) {
  Member& member = At(m);
  if (member.linked) return;
  member.linked = true;
  if (!member.opened) ++unopened_;
}

void MessageExchange::OnOpened(uint32_t m) {
  Member& member = At(m);
  if (member.opened) return;
  member.opened = true;
  if (member.linked) --unopened_;
  for (const Waiting& chunk : TakeWaiting(m)) Post(m, chunk);
}

void MessageExchange::OnLost(uint32_t m) {
  Member& member = At(m);
  if (member.linked && !member.opened) --unopened_;  // it never will be
  member.linked = false;
  TakeWaiting(m);
}

void MessageExchange::OnReleased(uint32_t m, uint64_t rounds) {
  At(m).released = std::max(At(m).released, rounds);
}

std::byte* MessageExchange::Accept(uint32_t m, const MessageHeader& header) {
  Member& member = At(m);
  const bool fits = header.offset <= kChunkBytes && header.bytes <= kChunkBytes - header.offset;
  if (!served_[m] || !fits || header.round == kNoRound) return nullptr;
  Bank& bank = member.banks[header.round % kBanks];
  if (bank.unbegun > 0 && bank.round == header.round) {
    --bank.unbegun;
  } else {
    const bool occupied = bank.used && (bank.missing > 0 || bank.round >= At(self_).released);
    if (occupied || (bank.used && header.round <= bank.round)) return nullptr;
    if (header.others >= kMaxParts) return nullptr;
    bank.round = header.round;
    bank.used = true;
    bank.arrived = false;
    bank.unbegun = header.others;
    bank.missing = header.others + 1u;
  }
  if (header.part == 0) member.begun = std::max(member.begun, header.round + 1);
  return Chunk(m, header.round) + header.offset;
}

void MessageExchange::OnArrived(uint32_t m, uint64_t round) {
  Bank& bank = At(m).banks[round % kBanks];
  if (bank.round != round || bank.missing == 0 || --bank.missing > 0) return;
  bank.arrived = true;
  TellReleased(m, Tell::kMuch);
}

}  // namespace horoscale
