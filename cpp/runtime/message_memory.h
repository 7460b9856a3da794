// Temporary memory for messages that can't be received at their destination directly.
#pragma once

#include "base/status.h"
#include "collectives/collective.h"
#include "runtime/operation.h"

namespace horoscale {

// Pinned memory for a message of a CUDA tensor. An error names the message.
Result<OwnedBytes> AllocatePinnedFor(const Operation& operation);

// Allocates a copy for a receive: for a view that is not accessible in place, and for a CUDA
// tensor.
Status MakeRoom(Operation& operation);

}  // namespace horoscale
