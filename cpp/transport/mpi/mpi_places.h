// Where an MPI library may be, where the process has none: names for the loader, best first.
#pragma once

#include <string>
#include <vector>

namespace horoscale {

// `directory`: a Python environment's lib, or "".
std::vector<std::string> MpiLibraryNames(const std::string& directory);

}  // namespace horoscale
