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

// Elements whose largest magnitude is found in one vectorized loop.
constexpr int64_t kRun = 16;
constexpr int64_t kMostRuns = kGroupElements / kRun;

// The elements of a group that may be among the largest, in the order of their places.
struct Candidates {
  int64_t count = 0;
  uint16_t places[kGroupElements];
  uint32_t magnitudes[kGroupElements];

  void Add(const float* sums, int64_t begin, int64_t end, uint32_t at_least) {
    for (int64_t i = begin; i < end; ++i) {
      places[count] = static_cast<uint16_t>(i);
      magnitudes[count] = Magnitude(sums[i]);
      count += magnitudes[count] >= at_least;  // without a branch, which would be mispredicted
    }
  }
};

// The largest magnitude of each run; `sums` is padded to whole runs.
void FindLargest(const float* sums, int64_t runs, uint32_t* largest) {
  for (int64_t run = 0; run < runs; ++run, sums += kRun) {
    int32_t most = 0;
    for (int64_t i = 0; i < kRun; ++i) {
      most = std::max(most, static_cast<int32_t>(Magnitude(sums[i])));
    }
    largest[run] = static_cast<uint32_t>(most);
  }
}

// A magnitude that at least `kept` elements have: the runs are divided into as many parts, and each
// part has an element as large as the smallest of the parts' largest ones.
uint32_t LowerBound(const uint32_t* largest, int64_t runs, int64_t kept) {
  const int64_t part = runs / kept;
  if (part == 0) return 0;
  uint32_t bound = UINT32_MAX;
  for (int64_t i = 0; i < kept; ++i, largest += part) {
    bound = std::min(bound, *std::max_element(largest, largest + part));
  }
  return bound;
}

}  // namespace

TopK::TopK(int64_t kept, int64_t count)
    : count_(count),
      kept_(std::clamp<int64_t>((kept * count + kGroupElements - 1) / kGroupElements, 1, count)) {
  while (count_ >> (low_bits_ + 1) >= kept_) ++low_bits_;
}

void TopK::Encode(std::byte* out, const float* values, float* residuals) const {
  float sums[kGroupElements];
  for (int64_t i = 0; i < count_; ++i) {
    sums[i] = residuals == nullptr ? values[i] : values[i] + residuals[i];
  }
  const int64_t runs = (count_ + kRun - 1) / kRun;
  std::fill(sums + count_, sums + runs * kRun, 0.0f);
  uint32_t largest[kMostRuns];
  FindLargest(sums, runs, largest);
  const uint32_t bound = LowerBound(largest, runs, kept_);
  Candidates candidates;
  for (int64_t run = 0; run < runs; ++run) {
    if (largest[run] < bound) continue;
    candidates.Add(sums, run * kRun, std::min((run + 1) * kRun, count_), bound);
  }

  uint32_t sorted[kGroupElements];
  std::copy_n(candidates.magnitudes, candidates.count, sorted);
  uint32_t* const least = sorted + kept_ - 1;
  std::nth_element(sorted, least, sorted + candidates.count, std::greater<>());
  // Of the elements equal to the least one, keep as many as there is room for.
  int64_t equal = kept_ - std::count_if(sorted, least, [&](uint32_t m) { return m > *least; });
  std::byte* const low = out + 2 * kept_;
  std::byte* const gaps = low + low_bytes();
  std::memset(low, 0, static_cast<size_t>(low_bytes() + gap_bytes()));
  int64_t found = 0;
  for (int64_t i = 0; i < candidates.count; ++i) {
    const uint32_t magnitude = candidates.magnitudes[i];
    const bool is_sent = magnitude > *least || (magnitude == *least && equal-- > 0);
    if (!is_sent) continue;
    const int64_t place = candidates.places[i];
    const uint16_t value = ToBfloat16(sums[place]);
    std::memcpy(out + 2 * found, &value, sizeof(value));
    for (int bit = 0; bit < low_bits_; ++bit) {
      if (place >> bit & 1) SetBit(low, found * low_bits_ + bit);
    }
    SetBit(gaps, (place >> low_bits_) + found);
    sums[place] -= FloatFromBits(Bfloat16ToFloatBits(value));
    ++found;
  }
  const bool is_finite = *std::max_element(largest, largest + runs) < kInfinity;
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
