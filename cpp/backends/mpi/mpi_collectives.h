// The MPI backend: MPI's nonblocking collectives, which are often tuned for the cluster.
//
// It executes operations whose MPI semantics match the contract, up to the order of summation; the
// native backend executes the others.
#pragma once

#include <memory>

#include "backends/fused_operation.h"
#include "backends/mpi/mpi_communicators.h"
#include "collectives/collective.h"

namespace horoscale {

// Depends only on data that is equal on all members, so that all choose the same backend.
bool IsServedByMpi(const FusedOperation& operation);

// Starts an operation for which IsServedByMpi() is true. The operation must outlive the collective.
std::unique_ptr<Collective> StartMpi(std::shared_ptr<MpiSetCommunicator> communicator,
                                     FusedOperation& operation);

}  // namespace horoscale
