// The driver's half of the double, as NCCL's half uses it.
#pragma once

#include <functional>

namespace nccl_double {

struct Stream;

// Runs in the stream's order, in its thread.
void Push(Stream* stream, std::function<void()> work);
int DeviceOf(const Stream* stream);
// Of the calling thread's context.
int CurrentDevice();

}  // namespace nccl_double
