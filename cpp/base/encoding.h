// Encoding: the format of data between hosts, if it differs from the tensors' own type. Data within
// a host is not encoded.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/types.h"

namespace horoscale {

// The numbers travel on the wire and cross the C ABI.
enum class EncodingKind : uint8_t {
  kNone = 0,
  kFloat16 = 1,
  kBfloat16 = 2,
  kInt8 = 3,    // 8 bits an element, and a scale for each block
  kInt4 = 4,    // 4 bits an element, and a scale for each block
  kOneBit = 5,  // its sign, and a scale for each block
  kTopK = 6,    // the largest of each group, and where they are
  // One of the others, which the set's coordinator chooses for each operation. Nothing travels in
  // this one itself.
  kAdaptive = 7,
};
inline constexpr int kNumEncodingKinds = 8;

// Number of elements that share a scale. Plans also split tensors at multiples of 64 elements.
inline constexpr int64_t kBlockElements = 64;
// Number of elements that are encoded by one call and whose residuals one member of a host keeps.
// Groups begin at multiples of it in their tensor, however the tensor is split and fused.
inline constexpr int64_t kGroupElements = 4096;

struct Encoding {
  EncodingKind kind = EncodingKind::kNone;
  // kTopK: how many of each group of kGroupElements are kept, 1 to kGroupElements. kAdaptive: the
  // most that the relative error may be, in ten-thousandths, at least 1.
  uint16_t parameter = 0;

  // As one number: the kind in the lowest byte, `parameter` above it. The reverse: nothing where a
  // number stands for no encoding.
  int32_t Code() const { return static_cast<int32_t>(kind) | int32_t{parameter} << 8; }
  static std::optional<Encoding> FromCode(int64_t code);
  static Encoding Of(std::optional<DataType> type);

  bool IsNone() const { return kind == EncodingKind::kNone; }
  // The 16-bit type that each value is rounded to.
  std::optional<DataType> type() const;
  // Whether values lose so much that what is lost is kept, and sent with the next ones. An adaptive
  // one may.
  bool IsLossy() const { return kind >= EncodingKind::kInt8; }
  bool IsAdaptive() const { return kind == EncodingKind::kAdaptive; }
  // The most that the relative error may be, of an adaptive one.
  double MostError() const { return parameter / 1e4; }
  // What an element takes on average, of values of this type. Not of an adaptive one.
  double BytesPerElement(DataType dtype) const;
  // Whether values of this type travel in it, where it isn't none; others travel as they are.
  bool IsFor(DataType dtype) const;

  auto operator<=>(const Encoding&) const = default;
};

// "int8"; "topk", and "topk(41 of 4096)"; "adaptive", and "adaptive(0.1)".
std::string_view Name(EncodingKind kind);
std::string Name(const Encoding& encoding);

}  // namespace horoscale
