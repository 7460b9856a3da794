#include "core/request_codec.h"

#include <cmath>

#include "core/codec.h"

namespace horoscale {
namespace {

Status CheckTensor(const TensorSpec& tensor, OpKind kind, int64_t* data_bytes) {
  if (tensor.shape.size() > kMaxDimensions) {
    return Status::InvalidArgument("a tensor has " + std::to_string(tensor.shape.size()) +
                                   " dimensions; at most " + std::to_string(kMaxDimensions) +
                                   " are supported");
  }
  int64_t bytes = static_cast<int64_t>(SizeOf(tensor.dtype));
  bool empty = false;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const int64_t dimension = tensor.shape[i];
    if (dimension == kFreeDimension && i == 0 && HasFreeFirstDimension(kind)) continue;
    if (dimension < 0) {
      return Status::InvalidArgument("a tensor has the dimension " + std::to_string(dimension));
    }
    if (dimension == 0) {
      empty = true;
    } else if (bytes > kMaxRequestDataBytes / dimension) {
      return Status::InvalidArgument("a tensor is larger than 2^60 bytes");
    } else {
      bytes *= dimension;
    }
  }
  if (!empty) *data_bytes += bytes;
  if (*data_bytes > kMaxRequestDataBytes) {
    return Status::InvalidArgument("the tensors are larger than 2^60 bytes together");
  }
  return Status::Ok();
}

template <typename Enum>
Enum ReadEnum(WireReader& in, int count) {
  const uint8_t value = in.Byte();
  if (value >= count) in.Fail("an enumerator is unknown");
  return static_cast<Enum>(in.ok() ? value : 0);
}

bool ReadBool(WireReader& in) {
  const uint8_t value = in.Byte();
  if (value > 1) in.Fail("a flag is neither 0 nor 1");
  return value == 1;
}

// 0 stands for none.
std::optional<DataType> ReadWireType(WireReader& in) {
  const uint8_t value = in.Byte();
  if (value == 0) return {};
  const auto type = static_cast<DataType>(value);
  if (type != DataType::kFloat16 && type != DataType::kBfloat16) in.Fail("no type to travel in");
  return type;
}

Signature ReadSignature(WireReader& in) {
  Signature signature;
  signature.kind = ReadEnum<OpKind>(in, kNumOpKinds);
  signature.reduce_op = ReadEnum<ReduceOp>(in, kNumReduceOps);
  signature.on_device = ReadBool(in);
  signature.wire_dtype = ReadWireType(in);
  signature.root = in.Int();
  signature.target_set = in.Int();
  signature.prescale = in.Float64();
  signature.postscale = in.Float64();
  signature.tensors.resize(in.Count(kMaxTensors, 2));
  for (TensorSpec& tensor : signature.tensors) {
    tensor.dtype = ReadEnum<DataType>(in, kNumDataTypes);
    tensor.shape.resize(in.Count(kMaxDimensions, 1));
    for (int64_t& dimension : tensor.shape) dimension = in.Zigzag();
  }
  signature.ranks.resize(in.Count(kMaxRanks, 1));
  for (int& rank : signature.ranks) rank = in.Int();
  return signature;
}

}  // namespace

size_t EncodedSizeBound(std::string_view name, const Signature& signature) {
  size_t bytes = 64 + name.size() + 5 * signature.ranks.size();
  for (const TensorSpec& tensor : signature.tensors) bytes += 2 + 10 * tensor.shape.size();
  return bytes;
}

Status CheckLimits(const Request& request) {
  const Signature& signature = request.signature;
  if (request.name.size() > kMaxNameBytes) {
    return Status::InvalidArgument("a name of " + std::to_string(request.name.size()) +
                                   " bytes; at most " + std::to_string(kMaxNameBytes) +
                                   " are supported");
  }
  if (!std::isfinite(signature.prescale) || !std::isfinite(signature.postscale)) {
    return Status::InvalidArgument("a scale factor is not a finite number");
  }
  if (signature.tensors.size() > kMaxTensors || signature.ranks.size() > kMaxRanks ||
      EncodedSizeBound(request.name, signature) > kMaxRequestBytes) {
    return Status::InvalidArgument("a group of " + std::to_string(signature.tensors.size()) +
                                   " tensors is too large to be negotiated in one piece");
  }
  int64_t data_bytes = 0;
  for (const TensorSpec& tensor : signature.tensors) {
    HS_RETURN_IF_ERROR(CheckTensor(tensor, signature.kind, &data_bytes));
  }
  return Status::Ok();
}

void WriteRequest(const Request& request, WireWriter& out) {
  const Signature& signature = request.signature;
  out.Text(request.name);
  out.Varint(request.index);
  out.Zigzag(request.priority);
  out.Byte(static_cast<uint8_t>(signature.kind));
  out.Byte(static_cast<uint8_t>(signature.reduce_op));
  out.Byte(signature.on_device ? 1 : 0);
  out.Byte(signature.wire_dtype ? static_cast<uint8_t>(*signature.wire_dtype) : 0);
  out.Zigzag(signature.root);
  out.Zigzag(signature.target_set);
  out.Float64(signature.prescale);
  out.Float64(signature.postscale);
  out.Varint(signature.tensors.size());
  for (const TensorSpec& tensor : signature.tensors) {
    out.Byte(static_cast<uint8_t>(tensor.dtype));
    out.Varint(tensor.shape.size());
    for (int64_t dimension : tensor.shape) out.Zigzag(dimension);
  }
  out.Varint(signature.ranks.size());
  for (int rank : signature.ranks) out.Zigzag(rank);
}

Request ReadRequest(WireReader& in) {
  Request request;
  request.name = in.Text(kMaxNameBytes);
  request.index = in.Varint();
  request.priority = in.Int();
  request.signature = ReadSignature(in);
  if (!in.ok()) return {};
  if (request.name.empty() == (request.index == 0)) {
    in.Fail("a request needs either a name or an index");
  } else if (request.signature.kind == OpKind::kJoin) {
    in.Fail("join is not a request");
  } else if (!CheckLimits(request).ok()) {
    in.Fail("a request is beyond the limits");
  }
  return request;
}

}  // namespace horoscale
