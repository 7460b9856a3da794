#include "runtime/tuning_log.h"

#include <cinttypes>
#include <cstdio>

#include "base/status.h"
#include "platform/log.h"

namespace horoscale {

std::string DescribeVerdict(int process_set_id, const Autotuner::Record& record) {
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f", record.saved * 100);
  const Limits& limits = record.limits;
  return "process set " + std::to_string(process_set_id) + " was tuned in " +
         std::to_string(record.step) + " steps: " +
         (record.saved > 0
              ? "steps take " + std::string(percent) + " % less time with"
              : "no limits were significantly faster than the initial ones, which are kept:") +
         " HOROSCALE_FUSION_THRESHOLD=" + std::to_string(limits.fusion_threshold_bytes) +
         " HOROSCALE_PARTITION_BYTES=" + std::to_string(limits.partition_bytes) +
         " HOROSCALE_CREDIT_BYTES=" + std::to_string(limits.credit_bytes);
}

TuningLog::TuningLog(const std::string& path, int rank)
    : path_(path.empty() || rank == 0 ? path : path + ".rank" + std::to_string(rank)) {}

void TuningLog::Write(int process_set_id, const Autotuner::Record& record) {
  if (path_.empty()) return;
  if (!file_) {
    auto file = CreateOutputFile(path_);
    if (!file.ok()) {
      Log(LogLevel::kError, "opening AUTOTUNE_LOG: " + file.status().message());
      path_.clear();
      return;
    }
    file_ = file.TakeValue();
    std::fputs(
        "process_set,step,fusion_threshold_bytes,partition_bytes,credit_bytes,step_ms,what\n",
        file_.get());
  }
  const Limits& limits = record.limits;
  std::fprintf(file_.get(), "%d,%" PRIu64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",", process_set_id,
               record.step, limits.fusion_threshold_bytes, limits.partition_bytes,
               limits.credit_bytes);
  if (record.seconds > 0) std::fprintf(file_.get(), "%.4f", record.seconds * 1e3);
  std::fprintf(file_.get(), ",%s\n", std::string(record.what).c_str());
  std::fflush(file_.get());
}

}  // namespace horoscale
