// TuningLog: writes what tuners predict, try and choose as CSV. The file is created with the first
// line; lines are always complete, even if the process is killed.
#pragma once

#include <string>

#include "core/tuning_record.h"
#include "platform/output_file.h"

namespace horoscale {

// Describes the last record of a process set for the user.
std::string DescribeVerdict(int process_set_id, const TuningRecord& record);

// The lines of the file, without their ends. `what` is the last column, for readers that look for
// the end of a line.
std::string TuningLogHeader();
std::string TuningLogLine(int process_set_id, const TuningRecord& record);

class TuningLog {
 public:
  // With an empty path, nothing is written. Ranks above 0 append `.rank<N>`.
  TuningLog(const std::string& path, int rank);

  void Write(int process_set_id, const TuningRecord& record);

 private:
  std::string path_;  // empty if the file could not be opened
  OutputFile file_;
};

}  // namespace horoscale
