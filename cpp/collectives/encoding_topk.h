// The largest values of a group, and where they are. Internal to collectives/.
//
//     values     kept × bfloat16, in the order of their places
//     low bits   of the places, kept × low_bits(), one behind the other
//     gaps       between the places' high bits: one 0 for each 1 more, then a 1
//
// That is Elias' and Fano's code: the gaps are coded in what they take, 2 + log2(count / kept) bits
// a place, and yet the number of bytes is known beforehand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/encoding.h"

namespace horoscale {

class TopK {
 public:
  // `kept` is for a group of kGroupElements; of `count` values its share is kept, at least one.
  TopK(int64_t kept, int64_t count);

  int64_t kept() const { return kept_; }
  int64_t bytes() const { return 2 * kept_ + low_bytes() + gap_bytes(); }

  // As Encode() and DecodeAndAdd(). Of equal magnitudes those that come first are sent.
  void Encode(std::byte* out, const float* values, float* residuals) const;
  // Of a place beyond the group nothing is added.
  void DecodeAndAdd(float* dst, const std::byte* in) const;

 private:
  int64_t low_bytes() const { return (kept_ * low_bits_ + 7) / 8; }
  int64_t gap_bytes() const { return (kept_ + (count_ >> low_bits_) + 1 + 7) / 8; }

  int64_t count_;
  int64_t kept_;
  int low_bits_ = 0;
};

}  // namespace horoscale
