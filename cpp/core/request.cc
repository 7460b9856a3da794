#include "core/request.h"

#include <functional>
#include <tuple>

namespace horoscale {

int64_t TensorSpec::NumElements() const {
  int64_t elements = 1;
  for (int64_t dimension : shape) {
    if (dimension != kFreeDimension) elements *= dimension;
  }
  return elements;
}

int64_t Signature::TotalBytes() const {
  int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    bytes += tensor.NumElements() * static_cast<int64_t>(SizeOf(tensor.dtype));
  }
  return bytes;
}

namespace {

class Hasher {
 public:
  template <typename T>
  void Add(const T& value) {
    hash_ ^= std::hash<T>{}(value) + 0x9e3779b97f4a7c15u + (hash_ << 6) + (hash_ >> 2);
  }
  template <typename T>
  void Add(const std::vector<T>& values) {
    for (const T& value : values) Add(value);
  }
  void Add(const Encoding& value) { Add(value.Code()); }
  size_t Get() const { return hash_; }

 private:
  size_t hash_ = 0;
};

}  // namespace

size_t Hash(const Signature& signature) {
  Hasher hasher;
  std::apply([&](const auto&... field) { (hasher.Add(field), ...); }, FieldsOf(signature));
  for (const TensorSpec& tensor : signature.tensors) {
    hasher.Add(tensor.dtype);
    hasher.Add(tensor.shape);
  }
  return hasher.Get();
}

std::string DisplayName(std::string_view name, OpKind kind, uint64_t index) {
  if (!name.empty()) return std::string(name);
  return std::string(Name(kind)) + ".unnamed." + std::to_string(index);
}

std::string Request::DisplayName() const {
  return horoscale::DisplayName(name, signature.kind, index);
}

}  // namespace horoscale
