// Meeting: how the ranks of a job come to know each other: over the job's key-value store, or over
// MPI where MPI started them.
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

// What a rank knows when it has met the others.
struct Meeting {
  Identity identity;
  std::vector<std::string> hosts;       // by rank; the same for ranks that share memory
  std::string notice;                   // what the user should know of them; may be empty
  std::string address;                  // of this machine, by which it reaches the store
  bool on_loopback = false;             // all ranks reach the store over loopback
  std::unique_ptr<StoreServer> server;  // of the store, on rank 0 of ranks that met over MPI
  std::unique_ptr<StartingStore> store;
  const MpiLibrary* mpi = nullptr;  // where the ranks met over MPI
  // Where MPI is to carry everything; there is no store then.
  std::unique_ptr<MpiCommunicator> communicator;
  // A second one, where MPI's own collectives are to be used: their communicators are made of it.
  std::unique_ptr<MpiCommunicator> parent;
};

// What the ranks of the job join at the store, and no others there.
std::string JobKey(const JobOptions& options);

// Waits until all ranks have said where they run; kTimeout names those that haven't.
Result<Meeting> MeetOverStore(const JobOptions& options, const Config& config,
                              const VariableLookup& lookup, const std::string& host,
                              const Deadline& deadline);

// The MPI library, if MPI is to bring the ranks together: a communicator was given, CONTROLLER or
// BACKEND says so, or an MPI launcher started this process and nothing else says who it is. Null
// otherwise. An error says why MPI can't, where it has to.
Result<const MpiLibrary*> ChooseMpi(const JobOptions& options, const VariableLookup& lookup,
                                    BackendChoice backend);

// Initializes MPI where that is not done yet. Rank 0 then serves the store and tells the others
// over MPI where, and the secret. MPI carries everything on several hosts, unless BACKEND says that
// our own transports are to do that, and where BACKEND says so.
Result<Meeting> MeetOverMpi(const MpiLibrary& mpi, const JobOptions& options, const Config& config,
                            const std::string& host, const Deadline& deadline);

}  // namespace horoscale
