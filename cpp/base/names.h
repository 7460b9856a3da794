// Lists of names, as variables and arguments write them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace horoscale {

// The names between the commas of a text; empty ones are left out.
std::vector<std::string> SplitNames(std::string_view text);

}  // namespace horoscale
