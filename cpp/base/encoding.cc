#include "base/encoding.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace horoscale {

std::optional<Encoding> Encoding::FromCode(int64_t code) {
  const int64_t kind = code & 0xff;
  const int64_t parameter = code >> 8;
  if (code < 0 || kind >= kNumEncodingKinds) return std::nullopt;
  const Encoding encoding{static_cast<EncodingKind>(kind), static_cast<uint16_t>(parameter)};
  int64_t least = 0;
  int64_t most = 0;
  if (encoding.kind == EncodingKind::kTopK) {
    least = 1;
    most = kGroupElements;
  } else if (encoding.IsAdaptive()) {
    least = 1;
    most = UINT16_MAX;
  }
  if (parameter < least || parameter > most) return std::nullopt;
  return encoding;
}

Encoding Encoding::Of(std::optional<DataType> type) {
  if (type == DataType::kFloat16) return {EncodingKind::kFloat16};
  if (type == DataType::kBfloat16) return {EncodingKind::kBfloat16};
  return {};
}

std::optional<DataType> Encoding::type() const {
  if (kind == EncodingKind::kFloat16) return DataType::kFloat16;
  if (kind == EncodingKind::kBfloat16) return DataType::kBfloat16;
  return std::nullopt;
}

bool Encoding::IsFor(DataType dtype) const {
  if (dtype == DataType::kFloat32) return true;
  if (!IsLossy()) return dtype == DataType::kFloat64;
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16;
}

double Encoding::BytesPerElement(DataType dtype) const {
  // The scale of a block, per element.
  constexpr double kScaleBytes = 2.0 / kBlockElements;
  switch (kind) {
    case EncodingKind::kFloat16:
    case EncodingKind::kBfloat16:
      return IsFor(dtype) ? 2 : static_cast<double>(SizeOf(dtype));
    case EncodingKind::kInt8:
      return 1 + kScaleBytes;
    case EncodingKind::kInt4:
      return 0.5 + kScaleBytes;
    case EncodingKind::kOneBit:
      return 0.125 + kScaleBytes;
    case EncodingKind::kTopK: {
      const double share = static_cast<double>(parameter) / kGroupElements;
      return share * (2 + (2 - std::log2(share)) / 8);
    }
    case EncodingKind::kNone:
    case EncodingKind::kAdaptive:
      break;
  }
  return static_cast<double>(SizeOf(dtype));
}

std::string_view Name(EncodingKind kind) {
  constexpr std::array<std::string_view, kNumEncodingKinds> kNames = {
      "none", "float16", "bfloat16", "int8", "int4", "onebit", "topk", "adaptive"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Name(const Encoding& encoding) {
  std::string name(Name(encoding.kind));
  if (encoding.IsAdaptive()) {
    char most[16];
    std::snprintf(most, sizeof(most), "(%.4g)", encoding.MostError());
    return name + most;
  }
  if (encoding.kind != EncodingKind::kTopK) return name;
  return name + "(" + std::to_string(encoding.parameter) + " of " + std::to_string(kGroupElements) +
         ")";
}

}  // namespace horoscale
