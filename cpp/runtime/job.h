// Job: makes a process a rank. Determines its identity, connects to the other ranks, and starts the
// runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "rendezvous/store_server.h"
#include "runtime/runtime.h"
#include "runtime/starting_store.h"
#include "transport/mpi/mpi_library.h"

namespace horoscale {

// The caller's options. Missing values come from the environment (RANK, SIZE, RENDEZVOUS,
// RENDEZVOUS_SERVED, SECRET, SECRET_FILE) or from MPI. Without any of these, the process is rank 0
// of 1.
struct JobOptions {
  std::optional<int> rank;
  std::optional<int> size;
  std::optional<std::string> rendezvous;
  std::optional<bool> served;
  std::optional<std::string> secret;
  std::vector<int> ranks;  // the participating ranks, renumbered in this order; empty: all
  MpiHandle mpi_comm = 0;  // the communicator of the participating ranks; 0: none
  uint64_t view = 0;       // the number of an elastic job's view, assigned by its driver; 0: none
};

class Job {
 public:
  // Returns when all ranks have joined, or an error after at most START_TIMEOUT.
  static Result<std::unique_ptr<Job>> Join(const JobOptions& options);

  Runtime& runtime() { return *runtime_; }

  // Whether the ranks connected over MPI.
  bool over_mpi() const { return mpi_ != nullptr; }

  // Leaves the job. A nonempty reason means that this rank failed.
  void Shutdown(const std::string& reason);

 private:
  Job() = default;

  std::unique_ptr<StoreServer> server_;  // on rank 0, if the ranks connected over MPI
  std::unique_ptr<StartingStore> store_;
  std::unique_ptr<Runtime> runtime_;
  const MpiLibrary* mpi_ = nullptr;
};

}  // namespace horoscale
