// NcclLibrary: the process's libnccl.so.2, loaded at run time.
//
// Search order: the library that the process has loaded already (torch and TensorFlow load theirs),
// HOROSCALE_LIBNCCL, the wheels nvidia-nccl-cu12 and nvidia-nccl-cu13 in the Python environment,
// and the system's libraries.
#pragma once

#include <string>

#include "backends/nccl/nccl_api.h"
#include "base/status.h"

namespace horoscale {

class NcclLibrary {
 public:
  // Adds a directory of Python packages in which NCCL is searched (nvidia/nccl/lib). Any thread,
  // before Open().
  static void AddPackageDirectory(std::string directory);

  // The process's library, loaded by the first call. kUnimplemented lists what was tried, or
  // reports that it is too old.
  static Result<const NcclLibrary*> Open();

  const NcclFunctions& call() const { return functions_; }
  // Returns an error with the failed call and NCCL's description. kInProgress is not a failure.
  Status Check(int result, const char* function, NcclCommHandle comm = nullptr) const;

  const std::string& path() const { return path_; }
  int version_number() const { return version_; }  // 21805
  std::string version() const { return VersionText(version_); }

  static std::string VersionText(int number);  // "2.18.5"

 private:
  NcclLibrary() = default;
  static Result<const NcclLibrary*> Find();

  NcclFunctions functions_ = {};
  std::string path_;
  int version_ = 0;
};

}  // namespace horoscale
