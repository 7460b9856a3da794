// What the fuzzers of channels have in common: an input is a list of orders to one rank, which
// opens and closes its sets, uses those that are open, and takes what two others say.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace horoscale {

constexpr int kSelf = 1;
constexpr uint32_t kSets = 3;  // small numbers, so that what is said meets sets that are open
inline const std::vector<int> kMembers[kSets] = {{0, 1, 2}, {0, 1}, {1, 2}};

inline volatile std::byte seen;

// One round of our own, which `publish` puts into the exchange: looks at a byte of all others', for
// the sanitizer to see, and releases.
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

// Calls rank's OpenOrClose(set), UseExchange(set) and Take(from, order, what is said), which
// returns whether the rank goes on. What is said is a `Said` whose last bytes may be missing.
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
