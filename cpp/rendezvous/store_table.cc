#include "rendezvous/store_table.h"

#include <algorithm>

#include "rendezvous/store_protocol.h"

namespace horoscale {
namespace {

constexpr size_t kEntryOverheadBytes = 128;  // approximate overhead of a small entry

}  // namespace

Status StoreTable::Set(std::string_view key, std::span<const std::byte> value) {
  HS_RETURN_IF_ERROR(CheckStoreKey(key));
  HS_RETURN_IF_ERROR(CheckStoreValue(key, value));
  if (const std::vector<std::byte>* known = Find(key)) {
    if (std::equal(known->begin(), known->end(), value.begin(), value.end())) return Status::Ok();
    return Status::InvalidArgument("the store's key '" + std::string(key) +
                                   "' already has another value");
  }
  const size_t bytes = key.size() + value.size() + kEntryOverheadBytes;
  if (bytes > capacity_bytes_ - used_bytes_) {
    return Status::InvalidArgument("the store is full: " + std::to_string(used_bytes_) + " of " +
                                   std::to_string(capacity_bytes_) + " bytes are used");
  }
  used_bytes_ += bytes;
  values_.emplace(key, std::vector<std::byte>(value.begin(), value.end()));
  return Status::Ok();
}

const std::vector<std::byte>* StoreTable::Find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

}  // namespace horoscale
