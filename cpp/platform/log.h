// Logging to standard error: "[rank 2] warning: text", one write per line, filtered by level.
#pragma once

#include <optional>
#include <string_view>

namespace horoscale {

enum class LogLevel : int { kTrace = 0, kDebug, kInfo, kWarning, kError, kFatal, kOff };

// "trace", "debug", "info", "warning", "error", "fatal", "off".
std::string_view LogLevelName(LogLevel level);
// The level of a name, in any case.
std::optional<LogLevel> ParseLogLevel(std::string_view name);

// Process-wide; set when the runtime starts. Until then, and with rank -1, lines begin with
// "[horoscale]": of a launcher, whose store is ours.
void ConfigureLog(LogLevel level, bool show_time, int rank);
bool LogEnabled(LogLevel level);

// Thread-safe. Control characters in the text (tensor names come from users) are escaped.
void Log(LogLevel level, std::string_view text);
// What the user has asked for, such as the "state": a line that no level suppresses.
void LogAnswer(std::string_view what, std::string_view text);

}  // namespace horoscale
