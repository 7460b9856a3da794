// Any bytes: decoding a frame of a message does not crash, and what it accepts survives the wire.

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/message_frames.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horoscale;
  const auto value = DecodeMessageFrame(std::as_bytes(std::span(data, size)));
  if (!value.ok()) return 0;
  const std::vector<std::byte> bytes = Encode(*value);
  const auto again = DecodeMessageFrame(bytes);
  if (!again.ok() || again->type != value->type || again->number != value->number ||
      again->envelope != value->envelope || again->source != value->source ||
      again->bytes != value->bytes ||
      !std::equal(again->payload.begin(), again->payload.end(), value->payload.begin(),
                  value->payload.end())) {
    std::abort();
  }
  return 0;
}
