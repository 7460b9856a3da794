// Views a string as bytes, for functions that write to the wire.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace horoscale {

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace horoscale
