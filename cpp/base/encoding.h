// Encoding: the form in which what one host sends another travels, where that is not the tensors'
// own type. Within a host nothing is encoded.
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
};
inline constexpr int kNumEncodingKinds = 7;

// Elements that share a scale. Plans cut tensors at multiples of 64 elements too.
inline constexpr int64_t kBlockElements = 64;
// Elements that are encoded by one call, and of which one member of a host keeps the residuals.
// Groups begin at multiples of it in their tensor, however that is cut and fused.
inline constexpr int64_t kGroupElements = 4096;

struct Encoding {
  EncodingKind kind = EncodingKind::kNone;
  uint16_t kept = 0;  // kTopK: of each group of kGroupElements, 1 to kGroupElements

  // As one number: the kind in the lowest byte, `kept` above it. The reverse: nothing where a
  // number stands for no encoding.
  int32_t Code() const { return static_cast<int32_t>(kind) | int32_t{kept} << 8; }
  static std::optional<Encoding> FromCode(int64_t code);
  static Encoding Of(std::optional<DataType> type);

  bool IsNone() const { return kind == EncodingKind::kNone; }
  // The 16-bit type that values are rounded to, one by one.
  std::optional<DataType> type() const;
  // Whether values lose so much that what is lost is kept, and sent with the next ones.
  bool IsLossy() const { return kind >= EncodingKind::kInt8; }
  // Whether values of this type travel in it, where it isn't none; others travel as they are.
  bool IsFor(DataType dtype) const;

  auto operator<=>(const Encoding&) const = default;
};

// "int8"; "topk", and "topk(41 of 4096)".
std::string_view Name(EncodingKind kind);
std::string Name(const Encoding& encoding);

}  // namespace horoscale
