// Any frames of a broken rank, mixed with those of a correct one: the runtime does not crash, and
// ends all operations.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "platform/log.h"
#include "support/damaged_job.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horoscale;
  ConfigureLog(LogLevel::kOff, false, -1);
  testing::DamagedJob job(std::span(data, size));
  if (!job.Run()) std::abort();
  return 0;
}
