// Store: the key-value store through which the ranks of a job find each other before they have
// links.
//
// A flat map from keys to values, served by the launcher or rank 0. A key is set once and never
// changes, so values that were read stay valid. Data that every rank needs from every other rank is
// gathered: each rank sends one request and receives one reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horoscale {

// The contribution of one of `count` parties to a gathering, which is complete when all have
// contributed.
struct GatherRequest {
  std::string_view key;  // of the gathering
  uint32_t place = 0;    // of the party: 0 to count - 1
  uint32_t count = 1;
  std::span<const std::byte> value;
  std::string_view label = {};  // the party receives the values with its label
  // A key of the store that cancels the gathering when it is set. Empty: none.
  std::string_view unless = {};
  // Only for a join, which is a gathering that restarts under its key when it is complete, with the
  // next round number. The message for the other parties if this party's process exits. Parties
  // that wait with it receive it immediately; after the round is complete, it is stored at
  // FailedKey().
  std::string_view will = {};
};

struct Gathered {
  uint64_t round = 0;                                 // of a join
  std::map<uint32_t, std::vector<std::byte>> values;  // by place
};

// The key at which the store keeps the first will, or reason, of a round of a join.
inline std::string FailedKey(std::string_view prefix) { return std::string(prefix) + "failed"; }
// What the keys of a round begin with.
inline std::string RoundPrefix(std::string_view key, uint64_t round) {
  return std::string(key) + std::to_string(round) + "/";
}

class Store {
 public:
  virtual ~Store() = default;

  // kInvalidArgument if the key already has another value; setting the same value again is allowed.
  virtual Status Set(std::string_view key, std::span<const std::byte> value) = 0;

  // Waits for the key for at most `seconds`, then kTimeout.
  virtual Result<std::vector<std::byte>> Get(std::string_view key, double seconds) = 0;

  // Waits for the other parties for at most `seconds`, then kTimeout, with the missing places as
  // the detail's ranks. kRankFailed: cancelled; the message contains the reason.
  virtual Result<Gathered> Gather(const GatherRequest& request, double seconds) = 0;
};

}  // namespace horoscale
