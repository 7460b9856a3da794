// Any bytes: decoding a group of values touches nothing else.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "collectives/encoding.h"

// The first bytes select the encoding and the number of values; the rest is the received data.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horoscale;
  if (size < 5) return 0;
  const auto encoding = Encoding::FromCode(data[0] | data[1] << 8 | data[2] << 16);
  const int64_t count = (data[3] | data[4] << 8) % kGroupElements + 1;
  if (!encoding || !encoding->IsLossy() || encoding->IsAdaptive()) return 0;
  const auto* const given = reinterpret_cast<const std::byte*>(data + 5);
  std::vector<std::byte> bytes(given, given + (size - 5));
  bytes.resize(static_cast<size_t>(EncodedBytes(*encoding, count)));
  std::vector<float> values(static_cast<size_t>(count));
  Decode(*encoding, values.data(), bytes.data(), count);
  DecodeAndAdd(*encoding, values.data(), bytes.data(), count);
  // The decoded values can be encoded, finite or not.
  std::vector<float> residuals(values.size(), 1.0f);
  Encode(*encoding, bytes.data(), values.data(), residuals.data(), count);
  return 0;
}
