// The driver's half of the double, as the NCCL half uses it.
#pragma once

#include <functional>

namespace nccl_double {

struct Stream;

// Runs in stream order, on the stream's thread.
void Push(Stream* stream, std::function<void()> work);
int DeviceOf(const Stream* stream);
// Of the calling thread's context.
int CurrentDevice();

}  // namespace nccl_double
