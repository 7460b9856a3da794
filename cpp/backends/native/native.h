// The native backend: horoscale's collectives over the Exchange of a process set.
#pragma once

#include <memory>

#include "backends/fused_operation.h"
#include "collectives/collective.h"
#include "transport/exchange.h"

namespace horoscale {

// Starts the operation, which must outlive the collective. The kind must be one that moves data.
std::unique_ptr<Collective> StartNative(Exchange& exchange, FusedOperation& operation);

}  // namespace horoscale
