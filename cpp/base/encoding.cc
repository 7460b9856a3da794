#include "base/encoding.h"

#include <array>

namespace horoscale {

std::optional<Encoding> Encoding::FromCode(int64_t code) {
  const int64_t kind = code & 0xff;
  const int64_t kept = code >> 8;
  if (code < 0 || kind >= kNumEncodingKinds) return std::nullopt;
  const Encoding encoding{static_cast<EncodingKind>(kind), static_cast<uint16_t>(kept)};
  const bool has_kept = encoding.kind == EncodingKind::kTopK;
  if (has_kept ? kept < 1 || kept > kGroupElements : kept != 0) return std::nullopt;
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

std::string_view Name(EncodingKind kind) {
  constexpr std::array<std::string_view, kNumEncodingKinds> kNames = {
      "none", "float16", "bfloat16", "int8", "int4", "onebit", "topk"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Name(const Encoding& encoding) {
  std::string name(Name(encoding.kind));
  if (encoding.kind != EncodingKind::kTopK) return name;
  return name + "(" + std::to_string(encoding.kept) + " of " + std::to_string(kGroupElements) + ")";
}

}  // namespace horoscale
