// A reference implementation of reductions, written for clarity, one element at a time, without
// code of the library. Fold() and the collectives must match it bit by bit.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/collective.h"

namespace horoscale::testing {

using Bytes = std::vector<std::byte>;

// The nearest number (ties to even) with `fraction` bits after the leading one, as a 16-bit float.
inline uint16_t EncodeHalf(float value, int fraction, int min_exponent, float limit) {
  const int exponent_bits = 15 - fraction;
  const auto infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << fraction);
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | (1 << (fraction - 1)));
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= static_cast<double>(limit)) return static_cast<uint16_t>(sign | infinity);
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), min_exponent);
  // In units of the last place; 2^(fraction+1) carries into the exponent by itself.
  const double units = std::nearbyint(std::ldexp(magnitude, fraction - exponent));
  const int base = (exponent - min_exponent) << fraction;
  return static_cast<uint16_t>(sign | (base + static_cast<int>(units)));
}

inline float DecodeHalf(uint16_t bits, int fraction, int min_exponent) {
  const int exponent_mask = (1 << (15 - fraction)) - 1;
  const int exponent = (bits >> fraction) & exponent_mask;
  const int units = bits & ((1 << fraction) - 1);
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == exponent_mask) {
    return units != 0 ? std::numeric_limits<float>::quiet_NaN()
                      : sign * std::numeric_limits<float>::infinity();
  }
  const int whole = exponent == 0 ? units : units + (1 << fraction);
  const int power = std::max(exponent, 1) - 1 + min_exponent - fraction;
  return sign * std::ldexp(static_cast<float>(whole), power);
}

// The storage format of a DataType, and its accumulation type.
template <typename T>
struct Plain {
  using Accumulator = T;
  using Factor = std::conditional_t<std::is_same_v<T, float>, float, double>;
  static constexpr size_t kBytes = sizeof(T);
  static T Load(const std::byte* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
  }
  static void Store(std::byte* p, T value) { std::memcpy(p, &value, sizeof(T)); }
};
template <int kFraction, int kMinExponent>
struct Half {
  using Accumulator = float;
  using Factor = float;
  static constexpr size_t kBytes = 2;
  static float Load(const std::byte* p) {
    return DecodeHalf(Plain<uint16_t>::Load(p), kFraction, kMinExponent);
  }
  static void Store(std::byte* p, float value) {
    // Halfway between the largest number and the next power of two.
    const int max_exponent = 1 - kMinExponent;
    const double limit = std::ldexp(2.0 - std::ldexp(1.0, -kFraction - 1), max_exponent);
    Plain<uint16_t>::Store(p,
                           EncodeHalf(value, kFraction, kMinExponent, static_cast<float>(limit)));
  }
};
using Float16 = Half<10, -14>;
using Bfloat16 = Half<7, -126>;
struct Truth : Plain<uint8_t> {};

template <typename T>
T Canonical(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(x) ? std::numeric_limits<T>::quiet_NaN() : x;
  } else if constexpr (std::is_integral_v<T>) {
    return x;
  } else {
    return {Canonical(x.real()), Canonical(x.imag())};
  }
}

template <typename T>
T Wrap(T a, T b, bool product) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  return static_cast<T>(product ? x * y : x + y);
}

template <typename Format>
auto Combine(ReduceOp op, typename Format::Accumulator a, typename Format::Accumulator b) {
  using T = typename Format::Accumulator;
  if constexpr (std::is_same_v<Format, Truth>) {
    if (op == ReduceOp::kBitwiseXor) return static_cast<T>((a != 0) != (b != 0));
    const bool both =
        op == ReduceOp::kMin || op == ReduceOp::kProduct || op == ReduceOp::kBitwiseAnd;
    return static_cast<T>(both ? a != 0 && b != 0 : a != 0 || b != 0);
  } else if constexpr (std::is_integral_v<T> || std::is_floating_point_v<T>) {
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      if (a != a || b != b) return std::numeric_limits<T>::quiet_NaN();
      const bool take_second = op == ReduceOp::kMin ? b < a : b > a;
      return take_second ? b : a;
    }
    const bool product = op == ReduceOp::kProduct;
    if constexpr (std::is_integral_v<T>) {
      if (op == ReduceOp::kBitwiseAnd) return static_cast<T>(a & b);
      if (op == ReduceOp::kBitwiseOr) return static_cast<T>(a | b);
      if (op == ReduceOp::kBitwiseXor) return static_cast<T>(a ^ b);
      return Wrap(a, b, product);
    } else {
      return product ? a * b : a + b;
    }
  } else {
    if (op != ReduceOp::kProduct) return a + b;
    return T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  }
}

template <typename Format>
auto Scaled(typename Format::Accumulator x, double factor) {
  using T = typename Format::Accumulator;
  using Factor = typename Format::Factor;
  if (factor == 1.0) return x;
  if constexpr (std::is_same_v<Format, Truth>) {
    return static_cast<T>((x != 0 ? 1.0 : 0.0) * factor != 0);
  } else if constexpr (std::is_integral_v<T>) {
    const double scaled = static_cast<double>(x) * factor;
    if (std::isnan(scaled)) return T{0};
    if (scaled <= static_cast<double>(std::numeric_limits<T>::min())) {
      return std::numeric_limits<T>::min();
    }
    if (scaled >= static_cast<double>(std::numeric_limits<T>::max())) {
      return std::numeric_limits<T>::max();
    }
    return static_cast<T>(std::trunc(scaled));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(static_cast<Factor>(x) * static_cast<Factor>(factor));
  } else {
    using Part = typename T::value_type;
    return T(static_cast<Part>(static_cast<double>(x.real()) * factor),
             static_cast<Part>(static_cast<double>(x.imag()) * factor));
  }
}

template <typename Format>
auto Divided(typename Format::Accumulator x, int64_t divisor) {
  using T = typename Format::Accumulator;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<int64_t>(x) / divisor);
  } else if constexpr (std::is_floating_point_v<T>) {
    return x / static_cast<T>(divisor);
  } else {
    const auto by = static_cast<typename T::value_type>(divisor);
    return T(x.real() / by, x.imag() / by);
  }
}

template <typename Format>
Bytes FoldFormat(const Reduction& r, const std::vector<Bytes>& sources) {
  const bool divides = r.op == ReduceOp::kAverage && r.divisor != 1;
  if (sources.size() == 1 && !divides && r.prescale == 1.0 && r.postscale == 1.0) return sources[0];
  Bytes result(sources[0].size());
  for (size_t at = 0; at < result.size(); at += Format::kBytes) {
    auto value = Scaled<Format>(Format::Load(&sources[0][at]), r.prescale);
    for (size_t s = 1; s < sources.size(); ++s) {
      const auto next = Scaled<Format>(Format::Load(&sources[s][at]), r.prescale);
      value = Combine<Format>(r.op, value, next);
    }
    if (divides) value = Divided<Format>(value, r.divisor);
    Format::Store(&result[at], Canonical(Scaled<Format>(value, r.postscale)));
  }
  return result;
}

template <typename From, typename To>
Bytes ConvertFormat(const Bytes& from) {
  const size_t count = from.size() / From::kBytes;
  Bytes to(count * To::kBytes);
  for (size_t i = 0; i < count; ++i) {
    // float64 goes through float32.
    const auto value = Canonical(static_cast<float>(From::Load(&from[i * From::kBytes])));
    To::Store(&to[i * To::kBytes], value);
  }
  return to;
}

// Between a 16-bit type and float32 or float64.
inline Bytes ReferenceConvert(DataType from, DataType to, const Bytes& values) {
  using Convert = Bytes (*)(const Bytes&);
  static const std::map<std::pair<DataType, DataType>, Convert> conversions = {
      {{DataType::kFloat32, DataType::kFloat16}, ConvertFormat<Plain<float>, Float16>},
      {{DataType::kFloat64, DataType::kFloat16}, ConvertFormat<Plain<double>, Float16>},
      {{DataType::kFloat32, DataType::kBfloat16}, ConvertFormat<Plain<float>, Bfloat16>},
      {{DataType::kFloat64, DataType::kBfloat16}, ConvertFormat<Plain<double>, Bfloat16>},
      {{DataType::kFloat16, DataType::kFloat32}, ConvertFormat<Float16, Plain<float>>},
      {{DataType::kBfloat16, DataType::kFloat32}, ConvertFormat<Bfloat16, Plain<float>>},
      {{DataType::kFloat16, DataType::kFloat64}, ConvertFormat<Float16, Plain<double>>},
      {{DataType::kBfloat16, DataType::kFloat64}, ConvertFormat<Bfloat16, Plain<double>>}};
  return conversions.at({from, to})(values);
}

// The sources as if they were on one host.
inline Bytes ReferenceFold(const Reduction& r, const std::vector<Bytes>& sources) {
  switch (r.dtype) {
    case DataType::kUint8:
      return FoldFormat<Plain<uint8_t>>(r, sources);
    case DataType::kInt8:
      return FoldFormat<Plain<int8_t>>(r, sources);
    case DataType::kUint16:
      return FoldFormat<Plain<uint16_t>>(r, sources);
    case DataType::kInt16:
      return FoldFormat<Plain<int16_t>>(r, sources);
    case DataType::kInt32:
      return FoldFormat<Plain<int32_t>>(r, sources);
    case DataType::kInt64:
      return FoldFormat<Plain<int64_t>>(r, sources);
    case DataType::kFloat16:
      return FoldFormat<Float16>(r, sources);
    case DataType::kBfloat16:
      return FoldFormat<Bfloat16>(r, sources);
    case DataType::kFloat32:
      return FoldFormat<Plain<float>>(r, sources);
    case DataType::kFloat64:
      return FoldFormat<Plain<double>>(r, sources);
    case DataType::kBool:
      return FoldFormat<Truth>(r, sources);
    case DataType::kComplex64:
      return FoldFormat<Plain<std::complex<float>>>(r, sources);
    case DataType::kComplex128:
      return FoldFormat<Plain<std::complex<double>>>(r, sources);
  }
  return {};
}

// hosts[i] is the host of source i; empty if all are on one. Each host folds its values and stores
// the result, and the stored results are folded in host order. `wire`: the type in which hosts
// store their results, and the final result is, if it isn't their own type.
inline Bytes ReferenceFold(const Reduction& r, const std::vector<Bytes>& sources,
                           const std::vector<uint32_t>& hosts, std::optional<DataType> wire = {}) {
  std::map<uint32_t, std::vector<Bytes>> by_host;
  for (size_t i = 0; i < sources.size() && !hosts.empty(); ++i) {
    by_host[hosts[i]].push_back(sources[i]);
  }
  if (by_host.size() < 2) return ReferenceFold(r, sources);
  std::vector<Bytes> stored;
  for (const auto& [host, values] : by_host) {
    const Reduction in_host = {.dtype = r.dtype, .op = r.op, .prescale = r.prescale};
    stored.push_back(ReferenceFold(in_host, values));
    if (wire) stored.back() = ReferenceConvert(r.dtype, *wire, stored.back());
  }
  Reduction between = r;
  between.prescale = 1.0;
  between.dtype = wire.value_or(r.dtype);
  const Bytes result = ReferenceFold(between, stored);
  return wire ? ReferenceConvert(*wire, r.dtype, result) : result;
}

}  // namespace horoscale::testing
