// Any bytes: decoding a notice of a loss does not crash, and what it accepts survives the wire.

#include <cstdint>
#include <cstdlib>

#include "core/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horoscale;
  const auto value = DecodeLossNotice(std::as_bytes(std::span(data, size)));
  if (!value.ok()) return 0;
  const auto again = DecodeLossNotice(Encode(*value));
  if (!again.ok() || !(*again == *value)) std::abort();
  return 0;
}
