// MemoryStore: a Store within one process, for ranks that are threads of it.
#pragma once

#include <condition_variable>
#include <mutex>

#include "rendezvous/store.h"
#include "rendezvous/store_table.h"

namespace horoscale {

// Thread-safe.
class MemoryStore final : public Store {
 public:
  Status Set(std::string_view key, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  StoreTable table_;  // guarded by mutex_
};

}  // namespace horoscale
