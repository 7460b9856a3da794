// The frames with which members create a process set without the other ranks, and their codec.
// set_creations.h describes the protocol; the lowest member is the leader.
//
//   kAsk        member → leader   "I have called it for this set"
//   kMade       leader → member   "all have; register it": the set's number
//   kReady      member → leader   "it is registered here"
//   kBegin      leader → member   "it is registered everywhere"
//   kRefused    leader → member   the call fails, and why
//   kWithdrawn  member → others   "my call has failed, and why"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace horoscale {

// A set that its members create. Calls with the same ranks and tag belong together.
struct NewSet {
  std::vector<int> ranks;  // global, in the set's order
  bool distinct = false;   // even if a set of these ranks exists
  std::string tag;

  int LowestRank() const { return *std::min_element(ranks.begin(), ranks.end()); }
  bool operator==(const NewSet&) const = default;
};

struct SetCreationFrame {
  enum class Type : uint8_t {
    kAsk = 0,
    kMade = 1,
    kReady = 2,
    kBegin = 3,
    kRefused = 4,
    kWithdrawn = 5,
  };
  Type type = Type::kAsk;
  uint64_t call = 0;    // kAsk, kMade, kRefused: the member's number of its call
  uint32_t number = 0;  // kMade, kReady, kBegin: the leader's number of the set
  NewSet set;           // kAsk, kWithdrawn
  Status cause;         // kRefused, kWithdrawn: code, message and ranks
};

std::vector<std::byte> Encode(const SetCreationFrame& frame);
Result<SetCreationFrame> DecodeSetCreationFrame(std::span<const std::byte> bytes);

}  // namespace horoscale
