// TuningLog: what autotuning tries, as lines of comma-separated values. The file is there from the
// first line on; each line is whole, whenever the process ends.
#pragma once

#include <string>

#include "core/autotuner.h"
#include "platform/output_file.h"

namespace horoscale {

// The last record of a process set, for the user.
std::string DescribeVerdict(int process_set_id, const Autotuner::Record& record);

class TuningLog {
 public:
  // An empty path: nothing is written. Ranks above 0 append `.rank<N>`.
  TuningLog(const std::string& path, int rank);

  void Write(int process_set_id, const Autotuner::Record& record);

 private:
  std::string path_;  // empty once it could not be opened
  OutputFile file_;
};

}  // namespace horoscale
