#include "collectives/encoding_topk.h"

#include <algorithm>
#include <cstring>

#include "collectives/float16.h"

namespace horoscale {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;

uint32_t Magnitude(float x) { return BitsOfFloat(x) & 0x7fffffffu; }

// Finite values stay finite.
uint16_t ToBfloat16(float x) {
  const uint16_t nearest = Bfloat16FromFloatBits(BitsOfFloat(x));
  const bool overflows = Magnitude(x) < kInfinity && (nearest & 0x7fff) == kInfinity >> 16;
  return overflows ? static_cast<uint16_t>(nearest - 1) : nearest;
}

// Bits from the lowest of the first byte on, in memory that was set to 0.
void SetBit(std::byte* bits, int64_t index) {
  bits[index / 8] |= std::byte{1} << static_cast<int>(index % 8);
}
bool HasBit(const std::byte* bits, int64_t index) {
  return (bits[index / 8] >> static_cast<int>(index % 8) & std::byte{1}) != std::byte{};
}

}  // namespace

TopK::TopK(int64_t kept, int64_t count)
    : count_(count),
      kept_(std::clamp<int64_t>((kept * count + kGroupElements - 1) / kGroupElements, 1, count)) {
  while (count_ >> (low_bits_ + 1) >= kept_) ++low_bits_;
}

void TopK::Encode(std::byte* out, const float* values, float* residuals) const {
  float sums[kGroupElements];
  uint32_t magnitudes[kGroupElements];
  uint32_t sorted[kGroupElements];
  for (int64_t i = 0; i < count_; ++i) {
    sums[i] = residuals == nullptr ? values[i] : values[i] + residuals[i];
    magnitudes[i] = sorted[i] = Magnitude(sums[i]);
  }
  uint32_t* const least = sorted + kept_ - 1;
  std::nth_element(sorted, least, sorted + count_, std::greater<>());
  const bool is_finite = *std::max_element(sorted, least + 1) < kInfinity;
  // Of the elements equal to the least one, keep as many as there is room for.
  int64_t equal = kept_ - std::count_if(sorted, least, [&](uint32_t m) { return m > *least; });
  std::byte* const low = out + 2 * kept_;
  std::byte* const gaps = low + low_bytes();
  std::memset(low, 0, static_cast<size_t>(low_bytes() + gap_bytes()));
  int64_t found = 0;
  for (int64_t i = 0; i < count_; ++i) {
    const bool is_sent = magnitudes[i] > *least || (magnitudes[i] == *least && equal-- > 0);
    if (!is_sent) continue;
    const uint16_t value = ToBfloat16(sums[i]);
    std::memcpy(out + 2 * found, &value, sizeof(value));
    for (int bit = 0; bit < low_bits_; ++bit) {
      if (i >> bit & 1) SetBit(low, found * low_bits_ + bit);
    }
    SetBit(gaps, (i >> low_bits_) + found);
    sums[i] -= FloatFromBits(Bfloat16ToFloatBits(value));
    ++found;
  }
  if (residuals != nullptr && is_finite) std::copy_n(sums, count_, residuals);
}

void TopK::DecodeAndAdd(float* dst, const std::byte* in) const {
  const std::byte* const low = in + 2 * kept_;
  const std::byte* const gaps = low + low_bytes();
  int64_t found = 0;
  for (int64_t bit = 0; bit < 8 * gap_bytes() && found < kept_; ++bit) {
    if (!HasBit(gaps, bit)) continue;
    int64_t place = (bit - found) << low_bits_;
    for (int b = 0; b < low_bits_; ++b) {
      if (HasBit(low, found * low_bits_ + b)) place |= int64_t{1} << b;
    }
    uint16_t value = 0;
    std::memcpy(&value, in + 2 * found, sizeof(value));
    ++found;
    if (place < count_) dst[place] += FloatFromBits(Bfloat16ToFloatBits(value));
  }
}

}  // namespace horoscale
