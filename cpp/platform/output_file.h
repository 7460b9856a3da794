// Files that the runtime writes for its user: timelines, logs of tuning.
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

// Opens an empty file that only this user can read. No link is followed, and no file of another
// user's is written to: the folder may be one where others can put things. A terminal or /dev/null
// is taken as it is; a pipe is refused, because nobody knows who reads it.
Result<OutputFile> CreateOutputFile(const std::string& path);

}  // namespace horoscale
