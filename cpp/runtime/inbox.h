// Inbox: passes operations from user threads to the engine's owner, and holds the data about sets
// that user threads may access.
//
// A mutex guards it, which is never held in user code.
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

  // Adds a valid operation; a failed status means that it was rejected.
  Status Put(const OperationPtr& operation);
  bool HasInput() const { return has_input_.load(); }
  // The number of unfinished operations, without releases of views.
  int64_t unfinished() const { return unfinished_.load(); }
  // The number of added operations, if no others are unfinished and they are so small that they can
  // briefly wait for more; otherwise 0.
  size_t Gathering() const;
  std::vector<int> SetIds() const;
  // In the set's order.
  std::optional<std::vector<int>> SetRanks(int id) const;

  // Rejects all further operations; returns false if it was already closed.
  bool Close();
  bool IsClosed() const;

  // The engine's owner.

  // Returns the added operations. The next list may reuse the memory of `old`.
  std::vector<OperationPtr> Take(std::vector<OperationPtr> old = {});
  // The operation has finished, and its name is free. Called before other threads can see that it
  // is done.
  void OnFinished(const Operation& operation, const Status& status);
  void OnSetAdded(int id, const std::vector<int>& ranks, const std::vector<int>& order);
  void OnSetRemoved(int id);
  void OnSetFailed(int id, const Status& cause);
  // The set's collectives have failed; its messages continue.
  void OnMemberLeft(int id, const Status& cause);

  // The first failure of a caller's operation that another rank caused; whether any set has failed.
  // Any thread.
  Status harm() const;
  bool HasLostSet() const;

 private:
  // The data about a set for user threads.
  struct SetView {
    std::vector<int> ranks;  // sorted
    std::vector<int> order;
    Status failure;
    bool takes_messages = true;  // even after a failure
    std::unordered_set<std::string> pending_names;
    const CudaDevice* device = nullptr;  // the device of the first CUDA tensors
  };
  static Status BindDevice(const Operation& operation, SetView& view);

  const int rank_;
  mutable std::mutex mutex_;
  std::vector<OperationPtr> input_;  // guarded by mutex_, as the following
  int64_t input_bytes_ = 0;          // operations that must start immediately count as kLittleBytes
  std::map<int, SetView> views_;
  Token next_token_ = 1;
  bool closed_ = false;
  bool set_lost_ = false;
  Status harm_;

  std::atomic<bool> has_input_{false};
  std::atomic<int64_t> unfinished_{0};
};

}  // namespace horoscale
