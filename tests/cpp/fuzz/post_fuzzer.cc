// Any bytes: decoding a post does not crash, and what it accepts survives the wire.

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horoscale;
  const auto value = DecodePost(std::as_bytes(std::span(data, size)));
  if (!value.ok()) return 0;
  const auto bytes = Encode(value->post, value->values);
  const auto again = DecodePost(bytes);
  if (!again.ok() || !(again->post == value->post)) std::abort();
  if (!std::ranges::equal(again->values, value->values)) std::abort();
  return 0;
}
