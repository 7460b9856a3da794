// Whether an MPI launcher (mpirun, mpiexec, srun) started this process, as its variables say.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace horoscale {

struct MpiLauncher {
  std::string name;      // "Open MPI's mpirun"
  std::string variable;  // the one that gives the size
  int size = 1;
};

// How a variable is found by its whole name: getenv, or anything in a test.
using PlainLookup = std::function<const char*(const char* name)>;

std::optional<MpiLauncher> FindMpiLauncher(const PlainLookup& lookup);

}  // namespace horoscale
