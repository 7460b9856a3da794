// Logging to standard error: "[rank 2] warning: text", one write per line, filtered by level.
#pragma once

#include <optional>
#include <string_view>

namespace horoscale {

enum class LogLevel : int { kTrace = 0, kDebug, kInfo, kWarning, kError, kFatal, kOff };

// "trace", "debug", "info", "warning", "error", "fatal", "off".
std::string_view LogLevelName(LogLevel level);
// The level with this name; case-insensitive.
std::optional<LogLevel> ParseLogLevel(std::string_view name);

// Process-wide; called when the runtime starts. Before that, and with rank -1 (a launcher that
// serves the store), lines begin with "[horoscale]".
void ConfigureLog(LogLevel level, bool show_time, int rank);
bool LogEnabled(LogLevel level);

// Thread-safe. Control characters in the text (tensor names come from users) are escaped.
void Log(LogLevel level, std::string_view text);
// Logs output that the user has requested, such as the "state", at every level.
void LogAnswer(std::string_view what, std::string_view text);

}  // namespace horoscale
