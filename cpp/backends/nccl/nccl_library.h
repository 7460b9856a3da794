// NcclLibrary: the process' libnccl.so.2, opened at run time.
//
// Looked for in this order: what the process has loaded already (torch and TensorFlow load theirs),
// HOROSCALE_LIBNCCL, the wheels nvidia-nccl-cu12 and nvidia-nccl-cu13 of the Python environment,
// and the system's libraries.
#pragma once

#include <string>

#include "backends/nccl/nccl_api.h"
#include "base/status.h"

namespace horoscale {

class NcclLibrary {
 public:
  // Where Python's packages are, of which one may have NCCL in nvidia/nccl/lib. Any thread, before
  // Open().
  static void AddPackageDirectory(std::string directory);

  // The process' library, opened by the first call. kUnimplemented says where it was looked for, or
  // that it is too old.
  static Result<const NcclLibrary*> Open();

  const NcclFunctions& call() const { return functions_; }
  // Says which call failed and why, in NCCL's words. kInProgress is no failure.
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
