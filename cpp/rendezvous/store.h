// Store: how the ranks of a job find each other before they have links.
//
// A flat map from keys to values, served by the launcher (or rank 0) and reached by every rank. A
// key is set once and never changes, so that a value once read stays true. What every rank has to
// know of every other one is gathered: one request of each, and one reply to each.
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

// What one of `count` parties puts into a gathering, which is complete when all of them have.
struct GatherRequest {
  std::string_view key;  // of the gathering
  uint32_t place = 0;    // of the party: 0 to count - 1
  uint32_t count = 1;
  std::span<const std::byte> value;
  std::string_view label = {};  // the party gets the values that have its label
  // A key of the store: the gathering is given up when it has a value. Empty: none.
  std::string_view unless = {};
  // Of a join only, which is a gathering that begins anew under its key when it is complete, and
  // then counts a round more. What the others hear if this party's process ends: those who wait
  // with it at once; after the round is complete, those who look at the key FailedKey().
  std::string_view will = {};
};

struct Gathered {
  uint64_t round = 0;                                 // of a join
  std::map<uint32_t, std::vector<std::byte>> values;  // by place
};

// Where the store keeps the first will, or reason, of a round of a join.
inline std::string FailedKey(std::string_view prefix) { return std::string(prefix) + "failed"; }
// What the keys of a round begin with.
inline std::string RoundPrefix(std::string_view key, uint64_t round) {
  return std::string(key) + std::to_string(round) + "/";
}

class Store {
 public:
  virtual ~Store() = default;

  // kInvalidArgument if the key holds another value already; setting the same value again is fine.
  virtual Status Set(std::string_view key, std::span<const std::byte> value) = 0;

  // Waits for the key for at most `seconds`; kTimeout then.
  virtual Result<std::vector<std::byte>> Get(std::string_view key, double seconds) = 0;

  // Waits for the other parties for at most `seconds`; kTimeout then, with the places of those that
  // are missing as its detail's ranks. kRankFailed: given up, and the message says why.
  virtual Result<Gathered> Gather(const GatherRequest& request, double seconds) = 0;
};

}  // namespace horoscale
