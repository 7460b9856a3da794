// Job: how a process becomes a rank. Finds out who it is, meets the others, and starts the runtime.
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

// What the caller says of itself; what it leaves out comes from the environment (RANK, SIZE,
// RENDEZVOUS, RENDEZVOUS_SERVED, SECRET, SECRET_FILE) or from MPI, and with nothing at all it is
// rank 0 of 1.
struct JobOptions {
  std::optional<int> rank;
  std::optional<int> size;
  std::optional<std::string> rendezvous;
  std::optional<bool> served;
  std::optional<std::string> secret;
  std::vector<int> ranks;  // who takes part, numbered anew in this order; empty: all
  MpiHandle mpi_comm = 0;  // the communicator whose ranks take part; 0: none given
  uint64_t view = 0;       // of an elastic job, numbered by its driver; 0: none
};

class Job {
 public:
  // Returns when all ranks have come, or with what is wrong after START_TIMEOUT at the latest.
  static Result<std::unique_ptr<Job>> Join(const JobOptions& options);

  Runtime& runtime() { return *runtime_; }

  // Whether the ranks met over MPI.
  bool over_mpi() const { return mpi_ != nullptr; }

  // Leaves the job; with a reason, because this rank failed.
  void Shutdown(const std::string& reason);

 private:
  Job() = default;

  std::unique_ptr<StoreServer> server_;  // on rank 0 of a job that met over MPI
  std::unique_ptr<StartingStore> store_;
  std::unique_ptr<Runtime> runtime_;
  const MpiLibrary* mpi_ = nullptr;
};

}  // namespace horoscale
