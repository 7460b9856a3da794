// The MPI backend: MPI's own nonblocking collectives, which a cluster's vendor has tuned.
//
// It serves what MPI does exactly as the contract says, up to the order of a sum; the rest is the
// native backend's.
#pragma once

#include <memory>

#include "backends/fused_operation.h"
#include "backends/mpi/mpi_communicators.h"
#include "collectives/collective.h"

namespace horoscale {

// A function of what all members know alike, so that all choose the same backend.
bool IsServedByMpi(const FusedOperation& operation);

// Starts an operation that is served by MPI and must outlive the collective.
std::unique_ptr<Collective> StartMpi(std::shared_ptr<MpiSetCommunicator> communicator,
                                     FusedOperation& operation);

}  // namespace horoscale
