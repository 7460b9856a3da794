// Environment variables: HOROSCALE_X, else HOROVOD_X.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace horoscale {

struct EnvironmentVariable {
  std::string name;  // the one that was found, with its prefix: errors name it
  std::string value;
};

// Looks up HOROSCALE_<name>, then HOROVOD_<name>. A variable set to nothing is set.
std::optional<EnvironmentVariable> FindVariable(std::string_view name);

}  // namespace horoscale
