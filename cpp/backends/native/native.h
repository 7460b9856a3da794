// The native backend: our own collectives over the Exchange of a process set.
#pragma once

#include <memory>

#include "backends/fused_operation.h"
#include "collectives/collective.h"
#include "transport/exchange.h"

namespace horoscale {

// Starts the operation, which must outlive the collective. Kinds that move no data are not for a
// backend.
std::unique_ptr<Collective> StartNative(Exchange& exchange, FusedOperation& operation);

}  // namespace horoscale
