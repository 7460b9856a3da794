// StartingStore: the job's store as its ranks see it while they start. A rank that can't start, or
// ends, makes the others fail: why the first one did is in the store, where nobody waits any longer
// for what will not come, and everybody finds what to blame.
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

// Who joins, and what the others of its kind are told of it.
struct JoinRequest {
  std::string_view job;  // the same for all ranks of the job, and for no others at this store
  int rank = 0;
  int size = 1;
  std::string_view label = {};  // ranks with the same one see each other's cards
  std::string_view card = {};
};

class StartingStore final : public Store {
 public:
  // The store of a rank that is alone, or of a test.
  StartingStore(std::unique_ptr<Store> store, std::string prefix, int rank);

  // Waits until all ranks have joined. The store then numbers this start of the job. It also keeps
  // a will: others hear of it if this process ends. The deadline is that of the start: a server
  // that is silent keeps nobody waiting for long beyond it. kTimeout names the ranks that are
  // missing. Whoever sets FailedKey(request.job) calls it off.
  static Result<std::unique_ptr<StartingStore>> Join(std::unique_ptr<StoreClient> client,
                                                     const JoinRequest& request,
                                                     const Deadline& deadline);

  // What the keys of this start begin with: no other start has had the same.
  const std::string& prefix() const { return prefix_; }
  // Of the ranks with this rank's label.
  const std::map<int, std::string>& cards() const { return cards_; }

  Status Set(std::string_view key, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override;
  // Gives up as well when a rank has failed.
  Result<Gathered> Gather(const GatherRequest& request, double seconds) override;

  // Why there is nothing to wait for any more: a rank has failed, or the store is gone.
  Status Look();

  // What to say of a failure; the others hear of the first only. To be called while this rank's
  // links still stand.
  Status Explain(const Status& failure);

 private:
  std::unique_ptr<Store> store_;
  const std::string prefix_;
  const int rank_;
  std::map<int, std::string> cards_;
  bool explained_ = false;
};

}  // namespace horoscale
