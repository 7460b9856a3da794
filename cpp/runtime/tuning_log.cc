#include "runtime/tuning_log.h"

#include <cstdio>

#include "base/status.h"
#include "platform/log.h"

namespace horoscale {
namespace {

std::string Text(const char* format, double number) {
  char text[32];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

// Empty for 0.
std::string MillisecondsOrNothing(double seconds) {
  return seconds > 0 ? Text("%.4f", seconds * 1e3) : std::string();
}

// Quoted where necessary. Line breaks in names become spaces, so that a line stays a line.
std::string Field(const std::string& text) {
  if (text.find_first_of("\",\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c == '\n' || c == '\r' ? ' ' : c;
  }
  return quoted + '"';
}

}  // namespace

std::string DescribeVerdict(int process_set_id, const TuningRecord& record) {
  const Limits& limits = record.limits;
  return "process set " + std::to_string(process_set_id) + " was tuned in " +
         std::to_string(record.step) + " steps: " +
         (record.saved > 0
              ? "steps take " + Text("%.1f", record.saved * 100) + " % less time with"
              : "no limits were significantly faster than the initial ones, which are kept:") +
         " HOROSCALE_FUSION_THRESHOLD=" + std::to_string(limits.fusion_threshold_bytes) +
         " HOROSCALE_PARTITION_BYTES=" + std::to_string(limits.partition_bytes) +
         " HOROSCALE_CREDIT_BYTES=" + std::to_string(limits.credit_bytes) +
         " HOROSCALE_PACE_SECONDS=" + Text("%g", limits.pace_seconds);
}

std::string TuningLogHeader() {
  return "process_set,step,fusion_threshold_bytes,partition_bytes,credit_bytes,pace_seconds,"
         "step_ms,predicted_ms,name,encoding,why,what";
}

std::string TuningLogLine(int process_set_id, const TuningRecord& record) {
  const Limits& limits = record.limits;
  std::string line = std::to_string(process_set_id);
  for (const std::string& field :
       {std::to_string(record.step), std::to_string(limits.fusion_threshold_bytes),
        std::to_string(limits.partition_bytes), std::to_string(limits.credit_bytes),
        Text("%g", limits.pace_seconds), MillisecondsOrNothing(record.seconds),
        MillisecondsOrNothing(record.predicted_seconds), Field(record.name), Field(record.encoding),
        Field(record.why), std::string(record.what)}) {
    line += "," + field;
  }
  return line;
}

TuningLog::TuningLog(const std::string& path, int rank)
    : path_(path.empty() || rank == 0 ? path : path + ".rank" + std::to_string(rank)) {}

void TuningLog::Write(int process_set_id, const TuningRecord& record) {
  if (path_.empty()) return;
  if (!file_) {
    auto file = CreateOutputFile(path_);
    if (!file.ok()) {
      Log(LogLevel::kError, "opening AUTOTUNE_LOG: " + file.status().message());
      path_.clear();
      return;
    }
    file_ = file.TakeValue();
    std::fputs((TuningLogHeader() + "\n").c_str(), file_.get());
  }
  std::fputs((TuningLogLine(process_set_id, record) + "\n").c_str(), file_.get());
  std::fflush(file_.get());
}

}  // namespace horoscale
