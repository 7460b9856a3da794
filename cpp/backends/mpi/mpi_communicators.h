// MpiCommunicators: an MPI communicator for each process set, on which MPI's own collectives run.
//
// MPI can't create the communicator of a subset without blocking, and the engine must not block. A
// separate thread therefore creates and frees communicators, in the order of registration. This
// order is the same on all ranks, so that ranks never wait for each other in different
// communicators. For sets that are created from a user's communicator, the thread that registers
// the set duplicates it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "platform/thread.h"
#include "transport/mpi/mpi_communicator.h"

namespace horoscale {

// The communicator of one set: being created, ready, or failed.
class MpiSetCommunicator {
 public:
  // Null while it is being created.
  Result<MpiCommunicator*> Get() const;

  // The set's member that has this rank in the communicator. Only when it is ready.
  uint32_t MemberOf(int rank) const { return members_[static_cast<size_t>(rank)]; }

 private:
  friend class MpiCommunicators;
  void Set(std::unique_ptr<MpiCommunicator> communicator, std::vector<uint32_t> members);

  mutable std::mutex mutex_;
  std::unique_ptr<MpiCommunicator> communicator_;
  Status failure_;
  std::vector<uint32_t> members_;  // by rank; written before the communicator is ready
};

class MpiCommunicators {
 public:
  // `parent` is a duplicate of the job's communicator for exclusive use.
  static Result<std::unique_ptr<MpiCommunicators>> Create(std::unique_ptr<MpiCommunicator> parent);
  // Frees all communicators, unless other ranks do not do the same within a few seconds.
  ~MpiCommunicators();

  // Starts creating the communicator of a set of these ranks; returns immediately. Null if this
  // rank is not a member or is the only one.
  std::shared_ptr<MpiSetCommunicator> Make(std::span<const int> ranks);
  // The same, as a duplicate of a communicator with exactly these ranks, in any order. Collective
  // over it; blocks. Any thread.
  Result<std::shared_ptr<MpiSetCommunicator>> Duplicate(MpiHandle comm, std::span<const int> ranks,
                                                        const Deadline& deadline);
  // Frees the communicator of a set that was removed on all ranks.
  void Free(std::shared_ptr<MpiSetCommunicator> communicator);

 private:
  struct Task {
    std::shared_ptr<MpiSetCommunicator> communicator;
    std::vector<int> ranks;  // empty: free it
  };
  // Shared with the thread, which may outlive this object.
  struct State {
    std::unique_ptr<MpiCommunicator> parent;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    std::vector<std::shared_ptr<MpiSetCommunicator>> made;
    bool is_closing = false;
    bool is_done = false;
  };
  explicit MpiCommunicators(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void Run(State& state);
  static void Make(State& state, const Task& task);
  static void Add(State& state, const std::shared_ptr<MpiSetCommunicator>& communicator);

  std::shared_ptr<State> state_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace horoscale
