// SIGUSR2 asks a process what it waits for. The handler only counts: who drives an engine looks at
// the count, twice a second, and answers in its own thread.
#pragma once

#include <cstdint>

namespace horoscale {

// Takes SIGUSR2, for the life of the process. False if the process has a handler of its own (or
// ignores the signal): it stays.
bool TakeStateSignal();

// How often the process has been asked.
uint32_t StateRequests();

}  // namespace horoscale
