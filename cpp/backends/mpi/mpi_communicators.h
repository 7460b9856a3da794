// MpiCommunicators: a communicator of MPI's for each process set, on which MPI's own collectives
// run.
//
// MPI can't make the communicator of a subset without blocking, and the engine must not block: a
// thread makes and frees them, in the order of registration, which is the same on all ranks, so
// that no two ranks wait for each other in different communicators. Those of sets that are made
// from a user's communicator are duplicates of it, made by the thread that registers the set.
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

// The communicator of one set: being made, there, or failed.
class MpiSetCommunicator {
 public:
  // Null while it is being made.
  Result<MpiCommunicator*> Get() const;

  // Which member of the set has this rank in the communicator. Only once it is there.
  uint32_t MemberOf(int rank) const { return members_[static_cast<size_t>(rank)]; }

 private:
  friend class MpiCommunicators;
  void Set(std::unique_ptr<MpiCommunicator> communicator, std::vector<uint32_t> members);

  mutable std::mutex mutex_;
  std::unique_ptr<MpiCommunicator> communicator_;
  Status failure_;
  std::vector<uint32_t> members_;  // by rank; written before the communicator is there
};

class MpiCommunicators {
 public:
  // `parent` is a duplicate of the job's communicator that nothing else uses.
  static Result<std::unique_ptr<MpiCommunicators>> Create(std::unique_ptr<MpiCommunicator> parent);
  // Frees all, unless other ranks don't come to it within a few seconds.
  ~MpiCommunicators();

  // Begins to make the communicator of a set of these ranks; returns at once. Null where there is
  // nothing to communicate: this rank is outside or alone.
  std::shared_ptr<MpiSetCommunicator> Make(std::span<const int> ranks);
  // The same as a duplicate of a communicator whose ranks these are, in any order. Collective over
  // it; blocks. Any thread.
  Result<std::shared_ptr<MpiSetCommunicator>> Duplicate(MpiHandle comm, std::span<const int> ranks,
                                                        const Deadline& deadline);
  // The set was removed, on all ranks.
  void Free(std::shared_ptr<MpiSetCommunicator> communicator);

 private:
  struct Task {
    std::shared_ptr<MpiSetCommunicator> communicator;
    std::vector<int> ranks;  // empty: free it
  };
  // Lives as long as the thread, which may outlive this object.
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
