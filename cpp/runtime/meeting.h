// Meeting: lets the ranks of a job discover each other over the job's key-value store, or over MPI
// if MPI started them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "rendezvous/store_server.h"
#include "runtime/config.h"
#include "runtime/identity.h"
#include "runtime/job.h"
#include "runtime/starting_store.h"
#include "transport/mpi/mpi_communicator.h"
#include "transport/mpi/mpi_library.h"

namespace horoscale {

// The result for a rank.
struct Meeting {
  Identity identity;
  std::vector<std::string> hosts;       // by rank; the same for ranks that share memory
  std::string notice;                   // a notice about them for the user; may be empty
  std::string address;                  // the address of this machine from which it reaches the
                                        // store
  bool on_loopback = false;             // all ranks reach the store over loopback
  std::unique_ptr<StoreServer> server;  // the store's server, on rank 0, if the ranks connected
                                        // over MPI
  std::unique_ptr<StartingStore> store;
  const MpiLibrary* mpi = nullptr;  // set if the ranks connected over MPI
  // Set if MPI transfers all data; there is no store then.
  std::unique_ptr<MpiCommunicator> communicator;
  // A second communicator, if MPI's own collectives are used: their communicators are created from
  // it.
  std::unique_ptr<MpiCommunicator> parent;
};

// The key under which exactly the ranks of this job join at the store.
std::string JobKey(const JobOptions& options);

// Waits until all ranks have published where they run; kTimeout names the missing ones.
Result<Meeting> MeetOverStore(const JobOptions& options, const Config& config,
                              const VariableLookup& lookup, const std::string& host,
                              const Deadline& deadline);

// The MPI library, if the ranks must connect over MPI: a communicator was passed, CONTROLLER or
// BACKEND selects MPI, or an MPI launcher started this process and no other source defines its
// identity. Null otherwise. An error if MPI is required but can't be used.
Result<const MpiLibrary*> ChooseMpi(const JobOptions& options, const VariableLookup& lookup,
                                    BackendChoice backend);

// Initializes MPI if necessary. Rank 0 then serves the store, and broadcasts its address and the
// secret over MPI. MPI transfers all data if BACKEND selects it, or if the ranks are on several
// hosts and BACKEND does not select the native transports.
Result<Meeting> MeetOverMpi(const MpiLibrary& mpi, const JobOptions& options, const Config& config,
                            const std::string& host, const Deadline& deadline);

}  // namespace horoscale
