// An authenticated peer sends messages about process sets and chunks in any order, while sets open
// and close here. Each is refused or lands in the bank reserved for it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "fuzz/channel_orders.h"
#include "transport/message/message_channels.h"

using namespace horoscale;

namespace {

class Nowhere final : public MessagePost {
 public:
  void PostMessage(int, const MessageHeader&) override {}
  void PostChunk(int, const MessageHeader&, std::span<const std::byte>,
                 const std::shared_ptr<const void>&, uint32_t*) override {}
};

class Rank {
 public:
  void OpenOrClose(uint32_t set) {
    if (exchanges_[set] != nullptr) return exchanges_[set].reset();
    auto opened = channels_.Open({set, incarnations_[set]++}, kMembers[set],
                                 [](int rank) { return rank != kSelf; }, {});
    if (opened.ok()) exchanges_[set] = opened.TakeValue();
  }

  void UseExchange(uint32_t set) {
    MessageExchange* const exchange = exchanges_[set].get();
    UseRound(exchange, 0, [exchange](uint64_t round) { exchange->Publish(round, 8, {}); });
  }

  // False when the link would be closed.
  bool Take(int from, uint8_t, std::span<const std::byte> said) {
    MessageHeader header{};
    std::memcpy(&header, said.data(), said.size());
    if (header.type != MessageType::kChunk) return channels_.OnMessage(from, header, false).ok();
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
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Rank rank;
  FollowOrders<MessageHeader>({data, size}, &rank);
  return 0;
}
