// MemoryStore: a Store within one process, for ranks that are threads of the process.
#pragma once

#include <condition_variable>
#include <mutex>

#include "rendezvous/gatherings.h"
#include "rendezvous/store.h"
#include "rendezvous/store_table.h"

namespace horoscale {

// Thread-safe.
class MemoryStore final : public Store {
 public:
  Status Set(std::string_view key, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override;
  Result<Gathered> Gather(const GatherRequest& request, double seconds) override;

 private:
  void Tell(Gatherings::Outcome outcome);

  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  StoreTable table_;
  Gatherings gatherings_{StoreTable::kDefaultCapacityBytes};
  Gatherings::Guest next_guest_ = 0;
  std::map<Gatherings::Guest, Result<Gathered>> answers_;  // until their guests retrieve them
};

}  // namespace horoscale
