// Store: how the ranks of a job find each other before they have links.
//
// A flat map from keys to values, served by the launcher (or rank 0) and reached by every rank. A
// key is set once and never changes, so that a value once read stays true.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horoscale {

class Store {
 public:
  virtual ~Store() = default;

  // kInvalidArgument if the key holds another value already; setting the same value again is fine.
  virtual Status Set(std::string_view key, std::span<const std::byte> value) = 0;

  // Waits for the key for at most `seconds`; kTimeout then.
  virtual Result<std::vector<std::byte>> Get(std::string_view key, double seconds) = 0;
};

}  // namespace horoscale
