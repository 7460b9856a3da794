// Environment variables: HOROSCALE_X, else HOROVOD_X.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace horoscale {

struct EnvironmentVariable {
  std::string name;  // with the prefix that was found, for errors
  std::string value;
};

// Looks up HOROSCALE_<name>, then HOROVOD_<name>. An empty variable counts as set.
std::optional<EnvironmentVariable> FindVariable(std::string_view name);

}  // namespace horoscale
