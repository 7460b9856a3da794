// Inbox: what user threads hand to the engine's owner, with what they may know of its sets.
//
// One mutex guards it, which is never held in user code.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/operation.h"

namespace horoscale {

class Inbox {
 public:
  explicit Inbox(int rank) : rank_(rank) {}

  // Any thread.

  // Takes a valid operation; a failed status means that it was not taken.
  Status Put(const OperationPtr& operation);
  bool HasInput() const { return has_input_.load(); }
  // Operations that were taken and are not finished, without releases of views.
  int64_t unfinished() const { return unfinished_.load(); }
  // How many were taken, where they are all that is not finished and so small that they can wait a
  // moment for more; else 0.
  size_t Gathering() const;
  std::vector<int> SetIds() const;
  // In the set's order.
  std::optional<std::vector<int>> SetRanks(int id) const;

  // Nothing is taken any more; false if that was so already.
  bool Close();
  bool IsClosed() const;

  // The engine's owner.

  // The list of what comes next may take over the memory of an older one.
  std::vector<OperationPtr> Take(std::vector<OperationPtr> old = {});
  // The operation is over, and its name free. Before others can see that it is done.
  void OnFinished(const Operation& operation, const Status& status);
  void OnSetAdded(int id, const std::vector<int>& ranks, const std::vector<int>& order);
  void OnSetRemoved(int id);
  void OnSetFailed(int id, const Status& cause);
  // Collectives of the set have failed, and messages go on.
  void OnMemberLeft(int id, const Status& cause);

  // Any thread: the first failure that a caller has met because of another rank; whether some set
  // has failed.
  Status harm() const;
  bool HasLostSet() const;

 private:
  // What user threads know of a set.
  struct SetView {
    std::vector<int> ranks;  // sorted
    std::vector<int> order;
    Status failure;
    bool takes_messages = true;  // also after a failure
    std::unordered_set<std::string> pending_names;
    const CudaDevice* device = nullptr;  // of the first CUDA tensors
  };
  static Status BindDevice(const Operation& operation, SetView& view);

  const int rank_;
  mutable std::mutex mutex_;
  std::vector<OperationPtr> input_;  // guarded by mutex_, as the following
  int64_t input_bytes_ = 0;          // what has to begin at once counts as many
  std::map<int, SetView> views_;
  Token next_token_ = 1;
  bool closed_ = false;
  bool set_lost_ = false;
  Status harm_;

  std::atomic<bool> has_input_{false};
  std::atomic<int64_t> unfinished_{0};
};

}  // namespace horoscale
