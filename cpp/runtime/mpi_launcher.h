// Detects from the environment whether an MPI launcher (mpirun, mpiexec, srun) started this
// process.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace horoscale {

struct MpiLauncher {
  std::string name;      // "Open MPI's mpirun"
  std::string variable;  // the variable with the size
  int size = 1;
};

// Looks up a variable by its full name: getenv, or any function in a test.
using PlainLookup = std::function<const char*(const char* name)>;

std::optional<MpiLauncher> FindMpiLauncher(const PlainLookup& lookup);

}  // namespace horoscale
