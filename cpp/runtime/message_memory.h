// Where the bytes of a message are put that can't be where they belong at once.
#pragma once

#include "base/status.h"
#include "collectives/collective.h"
#include "runtime/operation.h"

namespace horoscale {

// Pinned memory for a message of a CUDA tensor. An error names the message.
Result<OwnedBytes> AllocatePinnedFor(const Operation& operation);

// For what is received: gives a view that can't be seen where it is, and a CUDA tensor, a copy.
Status MakeRoom(Operation& operation);

}  // namespace horoscale
