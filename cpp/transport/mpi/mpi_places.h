// Candidate names of MPI libraries for the loader, if the process has not loaded one; best first.
#pragma once

#include <string>
#include <vector>

namespace horoscale {

// `directory` is a Python environment's lib directory, or "".
std::vector<std::string> MpiLibraryNames(const std::string& directory);

}  // namespace horoscale
