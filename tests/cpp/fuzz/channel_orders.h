// Shared by the fuzzers of channels. An input is a list of commands to one rank, which opens and
// closes its sets, uses the open ones, and receives from two peers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace horoscale {

constexpr int kSelf = 1;
constexpr uint32_t kSets = 3;  // small numbers, so that messages hit open sets
inline const std::vector<int> kMembers[kSets] = {{0, 1, 2}, {0, 1}, {1, 2}};

inline volatile std::byte seen;

// One round of this rank, which `publish` writes into the exchange. Reads a byte of each peer's
// chunk, so that the sanitizer sees the access, and releases them.
template <typename Exchange, typename Publish>
void UseRound(Exchange* exchange, size_t byte, Publish publish) {
  if (exchange == nullptr) return;
  uint64_t& round = exchange->next_round;
  if (exchange->Reserve(round) != nullptr) publish(round);
  for (uint32_t member = 0; member < exchange->size(); ++member) {
    const std::byte* const chunk = exchange->Peek(round, member);
    if (chunk != nullptr) seen = chunk[byte];
  }
  exchange->Release(round++);
}

// Calls rank's OpenOrClose(set), UseExchange(set) and Take(from, order, message), which returns
// whether the rank goes on. The message is a `Said`, possibly truncated.
template <typename Said, typename Rank>
void FollowOrders(std::span<const uint8_t> input, Rank* rank) {
  bool goes_on = true;
  while (goes_on && !input.empty()) {
    const uint8_t order = input[0];
    input = input.subspan(1);
    if (order % 4 == 0) {
      rank->OpenOrClose(order / 4 % kSets);
    } else if (order % 4 == 1) {
      rank->UseExchange(order / 4 % kSets);
    } else {
      const size_t bytes = std::min(sizeof(Said), input.size());
      goes_on = rank->Take(order % 4 == 2 ? 0 : 2, order, std::as_bytes(input.first(bytes)));
      input = input.subspan(bytes);
    }
  }
}

}  // namespace horoscale
