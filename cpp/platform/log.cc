#include "platform/log.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <string>

namespace horoscale {
namespace {

constexpr std::array<std::string_view, 7> kLevelNames = {"trace", "debug", "info", "warning",
                                                         "error", "fatal", "off"};

std::atomic<LogLevel> g_level{LogLevel::kWarning};
std::atomic<bool> g_show_time{false};
std::atomic<int> g_rank{-1};

void AppendTime(std::string& line) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm local;
  localtime_r(&now.tv_sec, &local);
  char text[64];
  const size_t length = strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  line.append(text, length);
  snprintf(text, sizeof(text), ".%06ld ", now.tv_nsec / 1000);
  line += text;
}

void AppendEscaped(std::string& line, std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    // Terminals also interpret the C1 control characters; in UTF-8 they are 0xC2 and 0x80 to 0x9F.
    const bool is_c1 = c == 0xC2 && i + 1 < text.size() &&
                       static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                       static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else if (c < 0x20 || c == 0x7F || is_c1) {
      char escape[8];
      snprintf(escape, sizeof(escape), "\\x%02x", c);
      line += escape;
    } else {
      line += text[i];
    }
  }
}

void WriteLine(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;  // there is no place to report it
    line.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string_view LogLevelName(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  const auto same = [name](std::string_view known) {
    return std::equal(known.begin(), known.end(), name.begin(), name.end(), [](char a, char b) {
      return a == std::tolower(static_cast<unsigned char>(b));
    });
  };
  const auto found = std::find_if(kLevelNames.begin(), kLevelNames.end(), same);
  if (found == kLevelNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kLevelNames.begin());
}

void ConfigureLog(LogLevel level, bool show_time, int rank) {
  g_level.store(level, std::memory_order_relaxed);
  g_show_time.store(show_time, std::memory_order_relaxed);
  g_rank.store(rank, std::memory_order_relaxed);
}

bool LogEnabled(LogLevel level) {
  return level != LogLevel::kOff && level >= g_level.load(std::memory_order_relaxed);
}

namespace {

void WriteLogLine(std::string_view what, std::string_view text) {
  std::string line;
  line.reserve(text.size() + 64);
  if (g_show_time.load(std::memory_order_relaxed)) AppendTime(line);
  const int rank = g_rank.load(std::memory_order_relaxed);
  line += rank >= 0 ? "[rank " + std::to_string(rank) + "] " : "[horoscale] ";
  line += what;
  line += ": ";
  AppendEscaped(line, text);
  line += '\n';
  WriteLine(line);
}

}  // namespace

void Log(LogLevel level, std::string_view text) {
  if (LogEnabled(level)) WriteLogLine(LogLevelName(level), text);
}

void LogAnswer(std::string_view what, std::string_view text) { WriteLogLine(what, text); }

}  // namespace horoscale
