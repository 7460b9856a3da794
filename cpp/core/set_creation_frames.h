// The frames by which the members of a process set make it without the other ranks, as values and
// as bytes. set_creations.h tells the story; the lowest member leads.
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

// A set that is to be made by its members. The calls of one ranks and tag belong together.
struct NewSet {
  std::vector<int> ranks;  // global, in the set's order
  bool distinct = false;   // also if there is a set of these ranks
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
  uint64_t call = 0;    // kAsk, kMade, kRefused: the member's own number of its call
  uint32_t number = 0;  // kMade, kReady, kBegin: the leader's number of the set
  NewSet set;           // kAsk, kWithdrawn
  Status cause;         // kRefused, kWithdrawn: code, message and ranks
};

std::vector<std::byte> Encode(const SetCreationFrame& frame);
Result<SetCreationFrame> DecodeSetCreationFrame(std::span<const std::byte> bytes);

}  // namespace horoscale
