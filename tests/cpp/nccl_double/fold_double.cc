#include "nccl_double/fold_double.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "collectives/float16.h"

namespace nccl_double {
namespace {

using horoscale::BitsOfFloat;
using horoscale::Float16FromFloatBits;
using horoscale::Float16ToFloatBits;
using horoscale::FloatFromBits;

enum Type { kInt8 = 0, kUint8 = 1, kInt32 = 2, kInt64 = 4, kHalf = 6, kFloat = 7, kDouble = 8 };
constexpr int kBfloat16 = 9;
enum Op { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

struct Float16 {
  uint16_t bits;
  static float Load(Float16 value) { return FloatFromBits(Float16ToFloatBits(value.bits)); }
  static Float16 Store(float value) { return {Float16FromFloatBits(BitsOfFloat(value))}; }
};
struct Bfloat16 {
  uint16_t bits;
  static float Load(Bfloat16 value) { return FloatFromBits(uint32_t{value.bits} << 16); }
  static Bfloat16 Store(float value) {
    const uint32_t bits = BitsOfFloat(value);
    return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
  }
};
template <typename T>
struct Plain {
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};

template <typename T, typename Access>
void FoldAs(char* out, const std::vector<const char*>& in, size_t count, Operator op) {
  for (size_t i = 0; i < count; ++i) {
    const auto value = [&](size_t rank) {
      T stored;
      std::memcpy(&stored, in[rank] + i * sizeof(T), sizeof(T));
      auto loaded = Access::Load(stored);
      if (op.factor != 1.0) loaded = static_cast<decltype(loaded)>(loaded * op.factor);
      return loaded;
    };
    auto sum = value(0);
    for (size_t rank = 1; rank < in.size(); ++rank) {
      const auto next = value(rank);
      if (op.number == kProd) {
        sum = static_cast<decltype(sum)>(sum * next);
      } else if (op.number == kMax || op.number == kMin) {
        sum = op.number == kMax ? std::max(sum, next) : std::min(sum, next);
      } else {
        sum = static_cast<decltype(sum)>(sum + next);
      }
    }
    if (op.number == kAvg) {
      sum = static_cast<decltype(sum)>(sum / static_cast<decltype(sum)>(in.size()));
    }
    const T result = Access::Store(sum);
    std::memcpy(out + i * sizeof(T), &result, sizeof(T));
  }
}

}  // namespace

size_t SizeOfType(int type) {
  switch (type) {
    case kInt32:
    case kFloat:
      return 4;
    case kInt64:
    case kDouble:
      return 8;
    case kHalf:
    case kBfloat16:
      return 2;
    default:
      return 1;
  }
}

double ScalarOf(const void* scalar, int type) {
  double wide = 0;
  float single = 0;
  uint16_t half = 0;
  if (type == kDouble) {
    std::memcpy(&wide, scalar, sizeof(wide));
    return wide;
  }
  if (type == kFloat) {
    std::memcpy(&single, scalar, sizeof(single));
    return single;
  }
  std::memcpy(&half, scalar, sizeof(half));
  return type == kHalf ? Float16::Load({half}) : Bfloat16::Load({half});
}

void FoldInto(char* out, const std::vector<const char*>& in, size_t count, int type, Operator op) {
  switch (type) {
    case kInt8:
      return FoldAs<int8_t, Plain<int8_t>>(out, in, count, op);
    case kUint8:
      return FoldAs<uint8_t, Plain<uint8_t>>(out, in, count, op);
    case kInt32:
      return FoldAs<int32_t, Plain<int32_t>>(out, in, count, op);
    case kInt64:
      return FoldAs<int64_t, Plain<int64_t>>(out, in, count, op);
    case kHalf:
      return FoldAs<Float16, Float16>(out, in, count, op);
    case kBfloat16:
      return FoldAs<Bfloat16, Bfloat16>(out, in, count, op);
    case kDouble:
      return FoldAs<double, Plain<double>>(out, in, count, op);
    default:
      return FoldAs<float, Plain<float>>(out, in, count, op);
  }
}

}  // namespace nccl_double
