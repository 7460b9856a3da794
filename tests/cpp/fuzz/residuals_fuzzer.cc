// Any bytes: loading residuals does not crash, and what it accepts is saved unchanged.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "runtime/set_residuals.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horoscale;
  const SetPlace place({.process_set = 1}, {0, 1}, 0);
  SetResiduals residuals(place);
  if (!residuals.Load({reinterpret_cast<const std::byte*>(data), size}).ok()) return 0;
  SetResiduals again(place);
  const std::vector<std::byte> saved = residuals.Save();
  if (!again.Load(saved).ok() || again.Save() != saved) std::abort();
  return 0;
}
