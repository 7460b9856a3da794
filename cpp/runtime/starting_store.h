// StartingStore: the job's store as its ranks see it while they start. A rank that can't start, or
// ends, makes the others fail: why the first one did is in the store, where nobody waits any longer
// for what will not come, and everybody finds what to blame.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "rendezvous/store.h"
#include "rendezvous/store_client.h"

namespace horoscale {

class StartingStore final : public Store {
 public:
  // How often who waits for others looks whether one of them has failed.
  static constexpr double kLookSeconds = 0.25;

  // The store of a rank that is alone, or of a test.
  StartingStore(std::unique_ptr<Store> store, const std::string& key_prefix, int rank);

  // Leaves word at the server for the case that this process ends. The deadline is that of the
  // start: a server that is silent keeps nobody waiting for long beyond it.
  static Result<std::unique_ptr<StartingStore>> Create(std::unique_ptr<StoreClient> client,
                                                       const std::string& key_prefix, int rank,
                                                       const Deadline& deadline);

  Status Set(std::string_view key, std::span<const std::byte> value) override;
  // Gives up as well when a rank has failed.
  Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override;

  // Why there is nothing to wait for any more: a rank has failed, or the store is gone.
  Status Look();

  // What to say of a failure; the others hear of the first only. To be called while this rank's
  // links still stand.
  Status Explain(const Status& failure);

 private:
  std::unique_ptr<Store> store_;
  const std::string failed_key_;
  const int rank_;
  bool explained_ = false;
};

}  // namespace horoscale
