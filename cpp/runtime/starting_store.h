// StartingStore: the job's store during the startup of ranks. If a rank fails to start or exits,
// the others fail too. The store keeps the first failure, so that waits end early and all ranks
// report the root cause.
#pragma once

#include <map>
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

// The joining rank, and its data for others with the same label.
struct JoinRequest {
  std::string_view job;  // identifies the job at this store
  int rank = 0;
  int size = 1;
  std::string_view label = {};  // ranks with the same label receive each other's cards
  std::string_view card = {};
};

class StartingStore final : public Store {
 public:
  // For a single rank, or for tests.
  StartingStore(std::unique_ptr<Store> store, std::string prefix, int rank);

  // Waits until all ranks have joined. The store then assigns a number to this start of the job.
  // The store also keeps a will, which notifies the other ranks if this process exits. The deadline
  // is that of the startup, so an unresponsive server does not cause long waits beyond it. kTimeout
  // names the missing ranks. Setting FailedKey(request.job) cancels the join.
  static Result<std::unique_ptr<StartingStore>> Join(std::unique_ptr<StoreClient> client,
                                                     const JoinRequest& request,
                                                     const Deadline& deadline);

  // The unique prefix of the keys of this start.
  const std::string& prefix() const { return prefix_; }
  // The cards of the ranks with this rank's label.
  const std::map<int, std::string>& cards() const { return cards_; }

  Status Set(std::string_view key, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override;
  // Also fails when a rank has failed.
  Result<Gathered> Gather(const GatherRequest& request, double seconds) override;

  // An error if waiting is pointless: a rank has failed, or the store is gone.
  Status Look();

  // Returns the failure to report, with its root cause; publishes the first failure to the others.
  // Must be called before this rank's links are closed.
  Status Explain(const Status& failure);

 private:
  std::unique_ptr<Store> store_;
  const std::string prefix_;
  const int rank_;
  std::map<int, std::string> cards_;
  bool explained_ = false;
};

}  // namespace horoscale
