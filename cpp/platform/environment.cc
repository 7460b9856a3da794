#include "platform/environment.h"

#include <stdlib.h>

namespace horoscale {

std::optional<EnvironmentVariable> FindVariable(std::string_view name) {
  for (const std::string_view prefix : {"HOROSCALE_", "HOROVOD_"}) {
    std::string full = std::string(prefix) + std::string(name);
    if (const char* value = getenv(full.c_str()))
      return EnvironmentVariable{std::move(full), value};
  }
  return std::nullopt;
}

}  // namespace horoscale
