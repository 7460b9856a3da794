// The vocabulary of every layer: element types, reduction operators, operation kinds.
//
// The numeric values travel on the wire and cross the C ABI: they never change their meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace horoscale {

enum class DataType : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kBfloat16 = 7,
  kFloat32 = 8,
  kFloat64 = 9,
  kBool = 10,
  kComplex64 = 11,
  kComplex128 = 12,
};
inline constexpr int kNumDataTypes = 13;

// Size of one element in bytes.
size_t SizeOf(DataType dtype);
std::string_view Name(DataType dtype);
bool IsFloating(DataType dtype);
bool IsComplex(DataType dtype);

// The first six values are Horovod's public constants.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kBitwiseAnd = 6,
  kBitwiseOr = 7,
  kBitwiseXor = 8,
};
inline constexpr int kNumReduceOps = 9;
std::string_view Name(ReduceOp op);

enum class OpKind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kJoin = 6,
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,
  kReduce = 9,
  kGather = 10,
  kScatter = 11,
};
inline constexpr int kNumOpKinds = 12;
std::string_view Name(OpKind kind);

// Whether the first dimension may differ between members (it is exchanged with the data).
constexpr bool HasFreeFirstDimension(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

// Whether the inputs or results are ordered by the positions of the set's members.
constexpr bool FollowsOrder(OpKind kind) {
  return HasFreeFirstDimension(kind) || kind == OpKind::kReducescatter;
}

// Whether the operation combines values with an operator.
constexpr bool Reduces(OpKind kind) {
  return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter || kind == OpKind::kReduce;
}

// Whether one member is the root.
constexpr bool HasRoot(OpKind kind) {
  return kind == OpKind::kBroadcast || kind == OpKind::kReduce || kind == OpKind::kGather ||
         kind == OpKind::kScatter;
}

}  // namespace horoscale
