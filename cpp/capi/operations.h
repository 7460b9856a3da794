// Converts callers' requests to the runtime's operations.
#pragma once

#include "handles.h"

namespace horoscale {

// Creates an operation from a request, with copies of its strings, shapes and lists.
// kInvalidArgument for malformed requests; Runtime::Enqueue() makes all other checks.
Result<OperationPtr> OperationOf(hs_runtime* runtime, const hs_request& given);

// Makes it an operation on device tensors. Records the current position of the caller's stream, so
// call it last.
Status AttachDevice(const hs_device& given, Operation* operation);

}  // namespace horoscale
