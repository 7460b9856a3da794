// Parses lists of names in variables and arguments.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace horoscale {

// Returns the comma-separated names, without empty ones.
std::vector<std::string> SplitNames(std::string_view text);

}  // namespace horoscale
