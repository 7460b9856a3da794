#include "core/request_codec.h"

#include <cmath>
#include <tuple>
#include <type_traits>
#include <vector>

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
      return Status::InvalidArgument("a tensor has an invalid dimension: " +
                                     std::to_string(dimension));
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
    return Status::InvalidArgument("the total size of the tensors is larger than 2^60 bytes");
  }
  return Status::Ok();
}

// Codec of each type of field: Put() writes it, Get() reads it, and MostBytes() is its maximum
// size.

template <typename Enum>
concept Enumerator = std::is_enum_v<Enum>;

constexpr int NumValues(OpKind) { return kNumOpKinds; }
constexpr int NumValues(ReduceOp) { return kNumReduceOps; }
constexpr int NumValues(DataType) { return kNumDataTypes; }

template <Enumerator Enum>
void Put(WireWriter& out, Enum value) {
  out.Byte(static_cast<uint8_t>(value));
}
template <Enumerator Enum>
void Get(WireReader& in, Enum& value) {
  const uint8_t byte = in.Byte();
  if (byte >= NumValues(Enum{})) in.Fail("an enumerator is unknown");
  value = static_cast<Enum>(in.ok() ? byte : 0);
}
template <Enumerator Enum>
size_t MostBytes(Enum) {
  return 1;
}

void Put(WireWriter& out, bool value) { out.Byte(value ? 1 : 0); }
void Get(WireReader& in, bool& value) {
  const uint8_t byte = in.Byte();
  if (byte > 1) in.Fail("a flag is neither 0 nor 1");
  value = byte == 1;
}
size_t MostBytes(bool) { return 1; }

void Put(WireWriter& out, int value) { out.Zigzag(value); }
void Get(WireReader& in, int& value) { value = in.Int(); }
size_t MostBytes(int) { return 5; }

void Put(WireWriter& out, double value) { out.Float64(value); }
void Get(WireReader& in, double& value) { value = in.Float64(); }
size_t MostBytes(double) { return 8; }

void Put(WireWriter& out, const Encoding& encoding) {
  out.Varint(static_cast<uint64_t>(encoding.Code()));
}
void Get(WireReader& in, Encoding& encoding) {
  const auto known = Encoding::FromCode(static_cast<int64_t>(in.Varint(INT32_MAX)));
  if (!known) in.Fail("an encoding is unknown");
  encoding = known.value_or(Encoding());
}
size_t MostBytes(const Encoding&) { return 4; }

void Put(WireWriter& out, const std::vector<int>& ranks) {
  out.Varint(ranks.size());
  for (int rank : ranks) out.Zigzag(rank);
}
void Get(WireReader& in, std::vector<int>& ranks) {
  ranks.resize(in.Count(kMaxRanks, 1));
  for (int& rank : ranks) rank = in.Int();
}
size_t MostBytes(const std::vector<int>& ranks) { return 3 + 5 * ranks.size(); }

void Put(WireWriter& out, const std::vector<int64_t>& splits) {
  out.Varint(splits.size());
  for (int64_t rows : splits) out.Zigzag(rows);
}
void Get(WireReader& in, std::vector<int64_t>& splits) {
  splits.resize(in.Count(kMaxRanks, 1));
  for (int64_t& rows : splits) rows = in.Zigzag();
}
size_t MostBytes(const std::vector<int64_t>& splits) { return 3 + 10 * splits.size(); }

void Put(WireWriter& out, const TensorSpec& tensor) {
  Put(out, tensor.dtype);
  out.Varint(tensor.shape.size());
  for (int64_t dimension : tensor.shape) out.Zigzag(dimension);
}
void Get(WireReader& in, TensorSpec& tensor) {
  Get(in, tensor.dtype);
  tensor.shape.resize(in.Count(kMaxDimensions, 1));
  for (int64_t& dimension : tensor.shape) dimension = in.Zigzag();
}
size_t MostBytes(const TensorSpec& tensor) { return 2 + 10 * tensor.shape.size(); }

void Put(WireWriter& out, const Signature& signature) {
  std::apply([&](const auto&... field) { (Put(out, field), ...); }, FieldsOf(signature));
  out.Varint(signature.tensors.size());
  for (const TensorSpec& tensor : signature.tensors) Put(out, tensor);
}
void Get(WireReader& in, Signature& signature) {
  std::apply([&](auto&... field) { (Get(in, field), ...); }, FieldsOf(signature));
  signature.tensors.resize(in.Count(kMaxTensors, 2));
  for (TensorSpec& tensor : signature.tensors) Get(in, tensor);
}
size_t MostBytes(const Signature& signature) {
  size_t bytes = 3;  // the number of tensors
  std::apply([&](const auto&... field) { ((bytes += MostBytes(field)), ...); },
             FieldsOf(signature));
  for (const TensorSpec& tensor : signature.tensors) bytes += MostBytes(tensor);
  return bytes;
}

}  // namespace

size_t EncodedSizeBound(std::string_view name, const Signature& signature) {
  constexpr size_t kMostKeyBytes = 3 + 10 + 5;  // length of the name, index, priority
  return kMostKeyBytes + name.size() + MostBytes(signature);
}

Status CheckLimits(const Request& request) {
  const Signature& signature = request.signature;
  if (request.name.size() > kMaxNameBytes) {
    return Status::InvalidArgument("a name has " + std::to_string(request.name.size()) +
                                   " bytes; at most " + std::to_string(kMaxNameBytes) +
                                   " are supported");
  }
  if (!std::isfinite(signature.prescale) || !std::isfinite(signature.postscale)) {
    return Status::InvalidArgument("a scale factor is not a finite number");
  }
  if (signature.tensors.size() > kMaxTensors || signature.ranks.size() > kMaxRanks ||
      signature.splits.size() > kMaxRanks ||
      EncodedSizeBound(request.name, signature) > kMaxRequestBytes) {
    return Status::InvalidArgument("a group of " + std::to_string(signature.tensors.size()) +
                                   " tensors is too large to be negotiated as one request");
  }
  int64_t data_bytes = 0;
  for (const TensorSpec& tensor : signature.tensors) {
    HS_RETURN_IF_ERROR(CheckTensor(tensor, signature.kind, &data_bytes));
  }
  return Status::Ok();
}

void WriteRequest(const Request& request, WireWriter& out) {
  out.Text(request.name);
  out.Varint(request.index);
  out.Zigzag(request.priority);
  Put(out, request.signature);
}

Request ReadRequest(WireReader& in) {
  Request request;
  request.name = in.Text(kMaxNameBytes);
  request.index = in.Varint();
  request.priority = in.Int();
  Get(in, request.signature);
  if (!in.ok()) return {};
  if (request.name.empty() == (request.index == 0)) {
    in.Fail("a request must have either a name or an index");
  } else if (request.signature.kind == OpKind::kJoin) {
    in.Fail("join is not a request");
  } else if (!CheckLimits(request).ok()) {
    in.Fail("a request exceeds the limits");
  }
  return request;
}

}  // namespace horoscale
