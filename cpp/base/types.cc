#include "base/types.h"

namespace horoscale {

size_t SizeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool:
      return 1;
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
    case DataType::kComplex64:
      return 8;
    case DataType::kComplex128:
      return 16;
  }
  return 0;
}

std::string_view Name(DataType dtype) {
  static constexpr std::string_view kNames[kNumDataTypes] = {
      "uint8",    "int8",    "uint16",  "int16", "int32",     "int64",     "float16",
      "bfloat16", "float32", "float64", "bool",  "complex64", "complex128"};
  const auto i = static_cast<size_t>(dtype);
  return i < kNumDataTypes ? kNames[i] : "unknown dtype";
}

bool IsFloating(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

bool IsComplex(DataType dtype) {
  return dtype == DataType::kComplex64 || dtype == DataType::kComplex128;
}

std::string_view Name(ReduceOp op) {
  static constexpr std::string_view kNames[kNumReduceOps] = {
      "Average", "Sum", "Adasum", "Min", "Max", "Product", "BitwiseAnd", "BitwiseOr", "BitwiseXor"};
  const auto i = static_cast<size_t>(op);
  return i < kNumReduceOps ? kNames[i] : "unknown operator";
}

std::string_view Name(OpKind kind) {
  static constexpr std::string_view kNames[kNumOpKinds] = {
      "allreduce", "allgather",       "broadcast",          "alltoall", "reducescatter", "barrier",
      "join",      "add_process_set", "remove_process_set", "reduce",   "gather",        "scatter"};
  const auto i = static_cast<size_t>(kind);
  return i < kNumOpKinds ? kNames[i] : "unknown operation";
}

}  // namespace horoscale
