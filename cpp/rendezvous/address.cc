#include "rendezvous/address.h"

#include <charconv>
#include <optional>

namespace horoscale {
namespace {

Status Wrong(std::string_view text, std::string_view why) {
  return Status::InvalidArgument("invalid address '" + std::string(text) +
                                 "': " + std::string(why) + " (expected host:port or [IPv6]:port)");
}

std::optional<uint16_t> ParsePort(std::string_view text) {
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || stop != end || port == 0) return std::nullopt;
  return port;
}

}  // namespace

Result<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Wrong(text, "the port is missing");
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return Wrong(text, "no port after the closing bracket");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return Wrong(text, "an IPv6 address must be in brackets");
  }
  if (host.empty()) return Wrong(text, "the host is missing");
  if (host.find_first_of("[] \t\n") != std::string_view::npos || host.find('\0') != host.npos) {
    return Wrong(text, "the host contains an invalid character");
  }
  const std::optional<uint16_t> port = ParsePort(text.substr(colon + 1));
  if (!port) return Wrong(text, "the port is not a number from 1 to 65535");
  return HostPort{std::string(host), *port};
}

}  // namespace horoscale
