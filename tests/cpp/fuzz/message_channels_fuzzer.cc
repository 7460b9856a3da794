// Whatever an authenticated peer says of process sets and chunks, in any order and while sets open
// and close here: it is refused or lands in the bank that is kept for it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "transport/message/message_channels.h"

using namespace horoscale;

namespace {

class Nowhere final : public MessagePost {
 public:
  void PostMessage(int, const MessageHeader&) override {}
  void PostChunk(int, const MessageHeader&, std::span<const std::byte>,
                 const std::shared_ptr<const void>&, uint32_t*) override {}
};

constexpr int kSelf = 1;
constexpr uint32_t kSets = 3;  // small numbers, so that headers meet sets that are open
const std::vector<int> kMembers[kSets] = {{0, 1, 2}, {0, 1}, {1, 2}};

class Rank {
 public:
  void OpenOrClose(uint32_t set) {
    if (exchanges_[set] != nullptr) return exchanges_[set].reset();
    auto opened = channels_.Open({set, incarnations_[set]++}, kMembers[set],
                                 [](int rank) { return rank != kSelf; }, {});
    if (opened.ok()) exchanges_[set] = opened.TakeValue();
  }

  // One round of our own: publishes, looks at all others and releases.
  void UseExchange(uint32_t set) {
    MessageExchange* const exchange = exchanges_[set].get();
    if (exchange == nullptr) return;
    uint64_t& round = exchange->next_round;
    if (exchange->Reserve(round) != nullptr) exchange->Publish(round, 8, {});
    for (uint32_t member = 0; member < exchange->size(); ++member) {
      const std::byte* const chunk = exchange->Peek(round, member);
      if (chunk != nullptr) seen_ = static_cast<size_t>(chunk[0]);
    }
    exchange->Release(round++);
  }

  bool Take(int from, const MessageHeader& header) {
    if (header.type != MessageType::kChunk) return channels_.OnMessage(from, header).ok();
    const auto arrival = channels_.Begin(from, header);
    if (!arrival.ok()) return false;
    if (arrival->space != nullptr && header.bytes > 0) {
      arrival->space[0] = arrival->space[header.bytes - 1] = std::byte{1};
    }
    channels_.End(*arrival);
    return true;
  }

 private:
  Nowhere nowhere_;
  TransportCounters counters_;
  MessageChannels channels_{kSelf, &nowhere_, &counters_};
  std::unique_ptr<MessageExchange> exchanges_[kSets];
  uint32_t incarnations_[kSets] = {};
  volatile size_t seen_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Rank rank;
  std::span<const uint8_t> input(data, size);
  while (!input.empty()) {
    const uint8_t order = input[0];
    input = input.subspan(1);
    if (order % 4 == 0) {
      rank.OpenOrClose(order / 4 % kSets);
    } else if (order % 4 == 1) {
      rank.UseExchange(order / 4 % kSets);
    } else {
      MessageHeader header{};
      const size_t bytes = std::min(sizeof(header), input.size());
      std::memcpy(&header, input.data(), bytes);
      input = input.subspan(bytes);
      if (!rank.Take(order % 4 == 2 ? 0 : 2, header)) break;  // the link would be over
    }
  }
  return 0;
}
