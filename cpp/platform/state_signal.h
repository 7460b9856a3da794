// SIGUSR2 makes a process print what it is waiting for. The handler only increments a counter. The
// thread that drives an engine checks the counter twice a second and prints the answer.
#pragma once

#include <cstdint>

namespace horoscale {

// Installs the handler for the rest of the process's life. Returns false and does nothing if the
// process already handles or ignores the signal.
bool TakeStateSignal();

// The number of signals so far.
uint32_t StateRequests();

}  // namespace horoscale
