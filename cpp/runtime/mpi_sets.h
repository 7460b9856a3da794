// MpiSets: the communicators on which MPI's own collectives of process sets run, if they are used.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/mpi/mpi_communicators.h"

namespace horoscale {

class MpiSets {
 public:
  // `mpi` is null if MPI's collectives are not used.
  explicit MpiSets(std::unique_ptr<MpiCommunicators> mpi) : mpi_(std::move(mpi)) {}

  // Duplicates this communicator, which must have exactly these ranks, for the next set of these
  // ranks that is registered. Collective over it; blocks for at most `seconds`. Any thread.
  Status Use(std::vector<int> ranks, MpiHandle comm, double seconds);

  // The communicator for a set that is being registered; null if it needs none. Called by the
  // engine's owner.
  std::shared_ptr<MpiSetCommunicator> Make(const std::vector<int>& ranks);
  void Free(std::shared_ptr<MpiSetCommunicator> communicator);
  // Frees all communicators.
  void Close();

 private:
  std::mutex mutex_;
  std::shared_ptr<MpiCommunicators> mpi_;  // guarded by mutex_, as the following
  std::map<std::vector<int>, std::shared_ptr<MpiSetCommunicator>> prepared_;  // by Use()
};

}  // namespace horoscale
