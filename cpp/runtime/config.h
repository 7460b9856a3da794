// Configuration: all variables of the runtime in one table, which are read once into an immutable
// struct.
//
// A variable NAME is looked up as HOROSCALE_NAME, else HOROVOD_NAME. A value that does not parse is
// an error that names the variable; it is never silently replaced by the default.
// docs/configuration.md is generated from the table.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/aggregator.h"
#include "platform/environment.h"
#include "platform/log.h"

namespace horoscale {

enum class BackendChoice { kAuto, kNative, kMpi, kNccl };

struct Config {
  int64_t fusion_threshold_bytes = int64_t{128} << 20;
  int64_t partition_bytes = int64_t{16} << 20;
  int64_t credit_bytes = int64_t{64} << 20;
  double pace_seconds = 0.012;
  int64_t cache_capacity = 1024;
  int64_t one_hop_bytes = 8192;
  BackendChoice backend = BackendChoice::kAuto;
  bool deterministic_asked = false;  // explicitly: only canonical sums
  bool device_fusion_buffer = false;
  bool priority_scheduling = true;
  bool average_over_participants = false;  // after ranks have joined
  int64_t adasum_start_level = 1;
  bool autotune = false;
  std::string autotune_log_path;
  bool stall_check = true;
  double stall_warning_seconds = 60;
  double stall_shutdown_seconds = 0;
  bool state_signal = true;
  double start_timeout_seconds = 30;
  std::string timeline_path;
  bool timeline_mark_cycles = false;
  LogLevel log_level = LogLevel::kWarning;
  bool log_time = true;
  std::vector<std::string> network_interfaces;
  double silence_seconds = 30;
  bool encrypt = false;
  int64_t tcp_streams = 0;  // 0: determined by DataStreams()
  int64_t arena_bytes = int64_t{64} << 30;
  double report_patience_seconds = Aggregator::kPatienceSeconds;  // no variable: for tests
};

struct ConfigVariable {
  std::string_view name;  // without prefix
  std::string_view type;  // "bytes", "seconds", "count", "switch", "text" or its choices
  std::string_view default_value;
  std::string_view doc;
  // Stores the parsed text; false if it does not parse. Null: read elsewhere, listed for the docs.
  bool (*store)(std::string_view text, Config* config);
};

std::span<const ConfigVariable> ConfigVariables();

// Parses 1, true, yes, on, or their opposites, including empty text; returns false for other text.
bool ParseSwitch(std::string_view text, bool* out);

// Looks up a variable by its name without prefix: FindVariable in a process, any function in a
// test.
using VariableLookup = std::function<std::optional<EnvironmentVariable>(std::string_view name)>;

// kInvalidArgument names the variable, its text and the expected type.
Result<Config> ReadConfig(const VariableLookup& lookup);

}  // namespace horoscale
