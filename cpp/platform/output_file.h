// Files that the runtime writes for its user: timelines and tuning logs.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "base/status.h"

namespace horoscale {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using OutputFile = std::unique_ptr<std::FILE, FileCloser>;

// Opens an empty file that only this user can read. Symbolic links are not followed and files of
// other users are rejected, because other users may be able to write to the directory. Terminals
// and /dev/null are accepted; pipes are rejected, because their reader is unknown.
Result<OutputFile> CreateOutputFile(const std::string& path);

}  // namespace horoscale
