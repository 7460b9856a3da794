#include "platform/state_signal.h"

#include <signal.h>

#include <atomic>

namespace horoscale {
namespace {

std::atomic<uint32_t> g_requests{0};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "a signal handler changes it");

void OnSignal(int) { g_requests.fetch_add(1); }

}  // namespace

bool TakeStateSignal() {
  struct sigaction present = {};
  if (sigaction(SIGUSR2, nullptr, &present) != 0) return false;
  const bool has_info = (present.sa_flags & SA_SIGINFO) != 0;
  if (!has_info && present.sa_handler == OnSignal) return true;
  if (has_info || present.sa_handler != SIG_DFL) return false;
  struct sigaction ours = {};
  ours.sa_handler = OnSignal;
  // The signal must not interrupt system calls, and must not need space on small thread stacks.
  ours.sa_flags = SA_RESTART | SA_ONSTACK;
  return sigaction(SIGUSR2, &ours, nullptr) == 0;
}

uint32_t StateRequests() { return g_requests.load(); }

}  // namespace horoscale
