// Common functions of the message codecs, in addition to the primitives of wire.h.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "core/codec.h"
#include "core/wire.h"

namespace horoscale {

// Truncates a long text at a UTF-8 character boundary.
inline std::string_view Clip(std::string_view text) {
  if (text.size() <= kMaxTextBytes) return text;
  size_t size = kMaxTextBytes;
  while (size > 0 && (static_cast<uint8_t>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

inline Status Broken(std::string_view message, const char* reason) {
  return Status::Protocol("a " + std::string(message) + " can't be decoded: " + reason);
}

inline void CheckEnd(WireReader& in) {
  if (in.left() > 0) in.Fail("trailing bytes");
}

}  // namespace horoscale
