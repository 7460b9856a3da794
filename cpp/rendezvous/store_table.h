// StoreTable: the map behind every Store, with its rules and limits. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horoscale {

class StoreTable {
 public:
  static constexpr size_t kDefaultCapacityBytes = size_t{256} << 20;

  explicit StoreTable(size_t capacity_bytes = kDefaultCapacityBytes)
      : capacity_bytes_(capacity_bytes) {}

  // kInvalidArgument: the key has another value, or key, value or table would be too large.
  Status Set(std::string_view key, std::span<const std::byte> value);

  // Null if there is no such key. Values never change or move.
  const std::vector<std::byte>* Find(std::string_view key) const;

 private:
  size_t capacity_bytes_;
  size_t used_bytes_ = 0;
  std::map<std::string, std::vector<std::byte>, std::less<>> values_;
};

}  // namespace horoscale
