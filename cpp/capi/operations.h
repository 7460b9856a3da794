// From what callers describe to what the runtime executes.
#pragma once

#include "handles.h"

namespace horoscale {

// An operation as a request has it, with copies of its strings, shapes and lists. What can't be
// one is kInvalidArgument; the rest is for Runtime::Enqueue() to refuse.
Result<OperationPtr> OperationOf(hs_runtime* runtime, const hs_request& given);

// Makes it an operation on tensors of a device: marks where the caller's stream is by now, so the
// last thing to do.
Status AttachDevice(const hs_device& given, Operation* operation);

}  // namespace horoscale
