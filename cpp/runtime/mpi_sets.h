// MpiSets: the communicators on which MPI's own collectives of process sets run, where they do.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/mpi/mpi_communicators.h"

namespace horoscale {

class MpiSets {
 public:
  // Null where MPI's collectives are not used.
  explicit MpiSets(std::unique_ptr<MpiCommunicators> mpi) : mpi_(std::move(mpi)) {}

  // A duplicate of this communicator, which has exactly these ranks, is for the set of these ranks
  // that is registered next. Collective over it; blocks for so long at most. Any thread.
  Status Use(std::vector<int> ranks, MpiHandle comm, double seconds);

  // The engine's owner. Of a set that is being registered; null where it needs none.
  std::shared_ptr<MpiSetCommunicator> Make(const std::vector<int>& ranks);
  void Free(std::shared_ptr<MpiSetCommunicator> communicator);
  // The end: frees all.
  void Close();

 private:
  std::mutex mutex_;
  std::shared_ptr<MpiCommunicators> mpi_;  // guarded by mutex_, as the following
  std::map<std::vector<int>, std::shared_ptr<MpiSetCommunicator>> prepared_;  // by Use()
};

}  // namespace horoscale
