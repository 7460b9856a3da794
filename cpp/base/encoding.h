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
  kInt8 = 3,    // 8 bits per element, and a scale per block
  kInt4 = 4,    // 4 bits per element, and a scale per block
  kOneBit = 5,  // the sign of each element, and a scale per block
  kTopK = 6,    // the largest elements of each group, and their positions
};
inline constexpr int kNumEncodingKinds = 7;

// Number of elements that share a scale. Plans also split tensors at multiples of 64 elements.
inline constexpr int64_t kBlockElements = 64;
// Number of elements that are encoded by one call and whose residuals one member of a host keeps.
// Groups begin at multiples of it in their tensor, however the tensor is split and fused.
inline constexpr int64_t kGroupElements = 4096;

struct Encoding {
  EncodingKind kind = EncodingKind::kNone;
  uint16_t kept = 0;  // kTopK: elements sent per group of kGroupElements, 1 to kGroupElements

  // The encoding as one number: the kind in the lowest byte, `kept` above it. The inverse returns
  // nothing if the number is not a valid encoding.
  int32_t Code() const { return static_cast<int32_t>(kind) | int32_t{kept} << 8; }
  static std::optional<Encoding> FromCode(int64_t code);
  static Encoding Of(std::optional<DataType> type);

  bool IsNone() const { return kind == EncodingKind::kNone; }
  // The 16-bit type that each value is rounded to.
  std::optional<DataType> type() const;
  // Whether the encoding needs error feedback: the residuals are kept and added to the next values.
  bool IsLossy() const { return kind >= EncodingKind::kInt8; }
  // Whether an encoding other than none applies to this type; other types are sent unencoded.
  bool IsFor(DataType dtype) const;

  auto operator<=>(const Encoding&) const = default;
};

// "int8"; "topk", and "topk(41 of 4096)".
std::string_view Name(EncodingKind kind);
std::string Name(const Encoding& encoding);

}  // namespace horoscale
