// Parses host and port: "node7:4711", "10.0.0.7:4711", "[fe80::7]:4711".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace horoscale {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
  bool operator==(const HostPort&) const = default;
};

// kInvalidArgument describes the error; the port must be 1 to 65535.
Result<HostPort> ParseHostPort(std::string_view text);

}  // namespace horoscale
