#include "transport/mpi/mpi_places.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace horoscale {
namespace {

// Versioned names, because libmpi.so may be a linker script and does not identify the ABI.
constexpr std::string_view kOpenMpi = "libmpi.so.40";
constexpr std::string_view kOthers[] = {"libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1",
                                        "libmpi_abi.so.0"};

std::string Variable(const char* name) {
  const char* const value = getenv(name);
  return value == nullptr ? "" : value;
}

// <prefix>/lib of the program that started this process, which may be mpirun's daemon.
std::string ParentsLibraries() {
  char path[4096];
  const std::string link = "/proc/" + std::to_string(getppid()) + "/exe";
  const ssize_t length = readlink(link.c_str(), path, sizeof(path));
  if (length <= 0) return "";
  const std::string_view program(path, static_cast<size_t>(length));
  const size_t folder = program.rfind("/bin/");
  return folder == program.npos ? "" : std::string(program.substr(0, folder)) + "/lib";
}

}  // namespace

std::vector<std::string> MpiLibraryNames(const std::string& directory) {
  std::vector<std::string> names;
  for (const char* const variable : {"HOROSCALE_LIBMPI", "MPI4PY_LIBMPI"}) {
    if (std::string name = Variable(variable); !name.empty()) names.push_back(std::move(name));
  }
  std::vector<std::string> sonames = {std::string(kOpenMpi)};
  sonames.insert(sonames.end(), std::begin(kOthers), std::end(kOthers));
  const bool started_by_open_mpi = getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  if (!started_by_open_mpi) std::rotate(sonames.begin(), sonames.begin() + 1, sonames.end());

  std::vector<std::string> folders;
  if (const std::string prefix = Variable("OPAL_PREFIX"); !prefix.empty()) {
    folders.push_back(prefix + "/lib");
  }
  folders.push_back(ParentsLibraries());
  folders.push_back(directory);
  for (const std::string& folder : folders) {
    if (folder.empty()) continue;
    for (const std::string& soname : sonames) {
      const std::string path = folder + "/" + soname;
      const bool known = std::find(names.begin(), names.end(), path) != names.end();
      if (!known && access(path.c_str(), R_OK) == 0) names.push_back(path);
    }
  }
  names.insert(names.end(), sonames.begin(), sonames.end());
  return names;
}

}  // namespace horoscale
