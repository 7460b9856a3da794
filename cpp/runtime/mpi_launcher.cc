#include "runtime/mpi_launcher.h"

#include <charconv>
#include <string_view>

namespace horoscale {
namespace {

struct Known {
  const char* name;
  const char* size_variable;
  int least;  // what smaller sizes mean is not known
};

constexpr Known kKnown[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", 1},
    {"mpirun or mpiexec", "PMI_SIZE", 1},
    // Not SLURM_NTASKS, which a batch script has too.
    {"srun", "SLURM_STEP_NUM_TASKS", 2},
};

}  // namespace

std::optional<MpiLauncher> FindMpiLauncher(const PlainLookup& lookup) {
  for (const Known& known : kKnown) {
    const char* const found = lookup(known.size_variable);
    if (found == nullptr) continue;
    const std::string_view text = found;
    int size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size() || size < known.least) continue;
    return MpiLauncher{known.name, known.size_variable, size};
  }
  return std::nullopt;
}

}  // namespace horoscale
