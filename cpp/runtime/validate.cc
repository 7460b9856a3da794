#include "runtime/validate.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/process_set_ids.h"
#include "base/rank_list.h"
#include "collectives/adasum.h"
#include "collectives/adasum_stages.h"
#include "collectives/collective.h"
#include "collectives/fold.h"
#include "core/codec.h"
#include "core/mailbox.h"

namespace horoscale {
namespace {

bool MovesData(OpKind kind) {
  return Reduces(kind) || HasRoot(kind) || HasFreeFirstDimension(kind);
}

bool CountsRows(OpKind kind) {
  return HasFreeFirstDimension(kind) || kind == OpKind::kReducescatter;
}

Status Refuse(const Operation& operation, StatusCode code, const std::string& what) {
  return {code,
          operation.DisplayName() + ": " + what,
          {{}, operation.process_set_id, operation.request.name}};
}

Status Invalid(const Operation& operation, const std::string& what) {
  return Refuse(operation, StatusCode::kInvalidArgument, what);
}

// Validates the memory for a result whose number of rows the operation determines.
Status ValidateRoom(const Operation& operation, const TensorMemory& memory) {
  const Signature& signature = operation.request.signature;
  if (signature.kind == OpKind::kGather || signature.kind == OpKind::kScatter) {
    return Invalid(operation, "output is not null");
  }
  int64_t room = 0;
  if (memory.out_rows < 0 || __builtin_mul_overflow(memory.out_rows, memory.row_bytes, &room)) {
    return Invalid(operation, "out_rows is negative or too large");
  }
  if (signature.on_device) {
    return Refuse(operation, StatusCode::kUnsupported,
                  "results on a device are allocated by the library");
  }
  return Status::Ok();
}

Status ValidateShape(const Operation& operation, size_t index) {
  const Signature& signature = operation.request.signature;
  const TensorSpec& spec = signature.tensors[index];
  if (static_cast<size_t>(spec.dtype) >= kNumDataTypes) {
    return Invalid(operation, "unknown element type");
  }
  if (spec.shape.size() > kMaxDimensions) {
    return Invalid(operation, "more than " + std::to_string(kMaxDimensions) + " dimensions");
  }
  if (CountsRows(signature.kind) && spec.shape.empty()) {
    return Invalid(operation, std::string(Name(signature.kind)) +
                                  " needs at least one dimension; reshape the scalar to (1,)");
  }
  int64_t bytes = static_cast<int64_t>(SizeOf(spec.dtype));
  for (size_t d = 0; d < spec.shape.size(); ++d) {
    const bool is_free = d == 0 && HasFreeFirstDimension(signature.kind);
    const int64_t extent = is_free ? operation.tensors[index].rows : spec.shape[d];
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      return Invalid(operation, "a dimension is negative or the tensor too large");
    }
  }
  const TensorMemory& memory = operation.tensors[index];
  if (HasFreeFirstDimension(signature.kind) && memory.out != nullptr) {
    HS_RETURN_IF_ERROR(ValidateRoom(operation, memory));
  }
  // Else the root only.
  const bool reads = signature.kind != OpKind::kBroadcast && signature.kind != OpKind::kScatter;
  const bool writes = signature.kind == OpKind::kAllreduce || signature.kind == OpKind::kBroadcast;
  if (bytes > 0 && reads && memory.in == nullptr) return Invalid(operation, "input is null");
  if (bytes > 0 && writes && memory.out == nullptr) return Invalid(operation, "output is null");
  return Status::Ok();
}

// "(rows, 3, 4)"
std::string ShapeText(int64_t rows, const TensorSpec& spec) {
  std::string text = "(" + std::to_string(rows) + ",";
  for (size_t d = 1; d < spec.shape.size(); ++d) {
    text += (d == 1 ? " " : ", ") + std::to_string(spec.shape[d]);
  }
  return text + ")";
}

// Whether Adasum supports the operation; its set is checked later.
Status ValidateAdasum(const Operation& operation) {
  const Signature& signature = operation.request.signature;
  if (signature.kind != OpKind::kAllreduce) {
    return Refuse(
        operation, StatusCode::kUnsupported,
        "Adasum is an operator of allreduce alone, not of " + std::string(Name(signature.kind)));
  }
  if (signature.encoding.IsLossy()) {
    return Refuse(operation, StatusCode::kUnsupported,
                  "Adasum is not compressed to " + Name(signature.encoding));
  }
  for (const TensorSpec& spec : signature.tensors) {
    if (HasAdasum(spec.dtype)) continue;
    return Refuse(operation, StatusCode::kUnsupported,
                  "Adasum of " + std::string(Name(spec.dtype)) + " is not defined");
  }
  return Status::Ok();
}

Status ValidateReduction(const Operation& operation) {
  const Signature& signature = operation.request.signature;
  if (signature.reduce_op == ReduceOp::kAdasum) return ValidateAdasum(operation);
  for (const TensorSpec& spec : signature.tensors) {
    const Status status = CheckReduction(
        {spec.dtype, signature.reduce_op, signature.prescale, signature.postscale, 1});
    if (!status.ok()) return Refuse(operation, status.code(), status.message());
  }
  return Status::Ok();
}

// Sums the rows in `splits`.
Status SumSplits(const Operation& operation, size_t set_size, int64_t* sum) {
  if (operation.splits.size() != set_size) {
    return Invalid(operation, "splits has " + std::to_string(operation.splits.size()) +
                                  " entries, but the process set has " + std::to_string(set_size) +
                                  " ranks");
  }
  *sum = 0;
  for (const int64_t rows : operation.splits) {
    if (rows < 0) return Invalid(operation, "splits has a negative entry");
    if (__builtin_add_overflow(*sum, rows, sum)) return Invalid(operation, "splits overflow");
  }
  return Status::Ok();
}

Status ValidateSplits(const Operation& operation, size_t set_size) {
  int64_t sum = 0;
  HS_RETURN_IF_ERROR(SumSplits(operation, set_size, &sum));
  if (sum > operation.tensors.front().rows) {
    return Invalid(operation, "splits add up to " + std::to_string(sum) + ", but the tensor has " +
                                  std::to_string(operation.tensors.front().rows) + " rows");
  }
  return Status::Ok();
}

Status ValidateRoot(const Operation& operation, const std::vector<int>& ranks, int self) {
  const int root = operation.request.signature.root;
  if (!std::binary_search(ranks.begin(), ranks.end(), root)) {
    return Invalid(operation, "root rank " + std::to_string(root) +
                                  " (a global rank) is not in process set " +
                                  std::to_string(operation.process_set_id));
  }
  if (self != root) return Status::Ok();
  const bool writes = operation.request.signature.kind == OpKind::kReduce;
  for (const TensorMemory& tensor : operation.tensors) {
    if (tensor.rows * tensor.row_bytes == 0) continue;
    if (tensor.in == nullptr) return Invalid(operation, "input is null at the root");
    if (writes && tensor.out == nullptr) return Invalid(operation, "output is null at the root");
  }
  if (operation.request.signature.kind != OpKind::kScatter) return Status::Ok();
  return ValidateSplits(operation, ranks.size());
}

Status ValidateOwnRows(const Operation& operation, const std::vector<int>& ranks, int self) {
  const auto position = std::find(ranks.begin(), ranks.end(), self) - ranks.begin();
  int64_t sum = 0;
  if (!operation.splits.empty()) HS_RETURN_IF_ERROR(SumSplits(operation, ranks.size(), &sum));
  for (const TensorMemory& tensor : operation.tensors) {
    if (!operation.splits.empty() && sum != tensor.rows) {
      return Invalid(operation, "splits add up to " + std::to_string(sum) +
                                    ", but the tensor has " + std::to_string(tensor.rows) +
                                    " rows");
    }
    const RowRange own = RowsOf(operation.splits, tensor.rows, static_cast<uint32_t>(ranks.size()),
                                static_cast<uint32_t>(position));
    if (tensor.out == nullptr && own.count * tensor.row_bytes > 0) {
      return Invalid(operation, "output is null");
    }
  }
  return Status::Ok();
}

Status ValidateAdasumGroup(const Operation& operation, const std::vector<int>& ranks) {
  const Signature& signature = operation.request.signature;
  if (signature.reduce_op != ReduceOp::kAdasum) return Status::Ok();
  if (AdasumGroup(ranks, signature.adasum_start_level)) return Status::Ok();
  return Refuse(operation, StatusCode::kUnsupported,
                "HOROSCALE_ADASUM_START_LEVEL=" + std::to_string(signature.adasum_start_level) +
                    " makes groups of different sizes of process set " +
                    std::to_string(operation.process_set_id) + ", " + RankList(ranks));
}

Status ValidateNewSet(const Operation& operation, std::vector<int> ranks, int world_size) {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) return Invalid(operation, "a process set needs at least one rank");
  if (ranks.front() < 0 || ranks.back() >= world_size) {
    return Invalid(operation, "a rank is out of range: the job has ranks 0 to " +
                                  std::to_string(world_size - 1));
  }
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return Invalid(operation, "a rank appears twice");
  }
  return Status::Ok();
}

// Validates the caller of a set that its members create.
Status ValidateCaller(const Operation& operation, int self) {
  const std::vector<int>& ranks = operation.new_set->ranks;
  if (std::find(ranks.begin(), ranks.end(), self) != ranks.end()) return Status::Ok();
  return Invalid(operation,
                 "rank " + std::to_string(self) +
                     " is not a member of the new process set, which only its members create");
}

Status ValidateMessage(const Operation& operation) {
  const Message& message = *operation.message;
  const Envelope& envelope = message.envelope;
  if (envelope.tag < 0 || envelope.tag > kMaxTag) {
    return Refuse(operation, StatusCode::kInvalidArgument,
                  "the tag must be from 0 to " + std::to_string(kMaxTag));
  }
  if (envelope.bytes > kMaxMessageDataBytes) return Invalid(operation, "the message is too large");
  const bool needs_memory = !message.is_view && !message.released;
  if (needs_memory && envelope.bytes > 0 && message.memory == nullptr) {
    return Invalid(operation, "the tensor has no memory");
  }
  return Status::Ok();
}

Status ValidatePeer(const Operation& operation, const std::vector<int>& ranks) {
  const Message& message = *operation.message;
  if (!message.is_send && message.peer == kAnyPeer) return Status::Ok();
  if (std::binary_search(ranks.begin(), ranks.end(), message.peer)) return Status::Ok();
  return Invalid(operation, "rank " + std::to_string(message.peer) + " is not in process set " +
                                std::to_string(operation.process_set_id));
}

}  // namespace

Status ValidateRequest(const Operation& operation) {
  if (operation.message) return ValidateMessage(operation);
  const Request& request = operation.request;
  const Signature& signature = request.signature;
  const bool has_long_tag =
      operation.new_set != nullptr && operation.new_set->tag.size() > kMaxNameBytes;
  if (request.name.size() > kMaxNameBytes || has_long_tag) {
    return Status::InvalidArgument("the name is longer than " + std::to_string(kMaxNameBytes) +
                                   " bytes");
  }
  if (static_cast<size_t>(signature.kind) >= kNumOpKinds) {
    return Status::InvalidArgument("unknown kind of operation");
  }
  if (!MovesData(signature.kind)) {
    const bool anywhere =
        signature.kind == OpKind::kBarrier ||
        (signature.kind == OpKind::kRemoveProcessSet && IsMadeByMembers(operation.process_set_id));
    if (!anywhere && operation.process_set_id != 0) {
      return Invalid(operation, std::string(Name(signature.kind)) +
                                    " is an operation of the global process set");
    }
    if (!signature.tensors.empty()) return Invalid(operation, "it takes no tensors");
    return Status::Ok();
  }
  if (signature.tensors.empty()) return Invalid(operation, "no tensors");
  const bool takes_one = signature.kind == OpKind::kAlltoall || signature.kind == OpKind::kScatter;
  if (takes_one && signature.tensors.size() != 1) {
    return Invalid(operation, std::string(Name(signature.kind)) + " takes one tensor");
  }
  for (size_t i = 0; i < signature.tensors.size(); ++i) {
    HS_RETURN_IF_ERROR(ValidateShape(operation, i));
  }
  return Reduces(signature.kind) ? ValidateReduction(operation) : Status::Ok();
}

Status ValidateMembership(const Operation& operation, const std::vector<int>& ranks,
                          const std::vector<int>& order, int self) {
  const Signature& signature = operation.request.signature;
  if (!std::binary_search(ranks.begin(), ranks.end(), self)) {
    return Invalid(operation, "rank " + std::to_string(self) + " is not in process set " +
                                  std::to_string(operation.process_set_id));
  }
  if (operation.message) return ValidatePeer(operation, ranks);
  const int size = static_cast<int>(ranks.size());
  switch (signature.kind) {
    case OpKind::kAllreduce:
      return ValidateAdasumGroup(operation, ranks);
    case OpKind::kBroadcast:
    case OpKind::kReduce:
    case OpKind::kGather:
    case OpKind::kScatter:
      return ValidateRoot(operation, ranks, self);
    case OpKind::kReducescatter:
      return ValidateOwnRows(operation, order, self);
    case OpKind::kAlltoall:
      return ValidateSplits(operation, ranks.size());
    case OpKind::kAddProcessSet:
      if (operation.new_set == nullptr) return ValidateNewSet(operation, signature.ranks, size);
      HS_RETURN_IF_ERROR(ValidateNewSet(operation, operation.new_set->ranks, size));
      return ValidateCaller(operation, self);
    default:
      return Status::Ok();
  }
}

Status CheckResults(const Operation& operation) {
  for (size_t i = 0; i < operation.results.size(); ++i) {
    const TensorMemory& memory = operation.tensors[i];
    if (memory.out == nullptr) continue;
    const std::vector<int64_t>& parts = operation.results[i].rows;
    const int64_t rows = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    if (rows == memory.out_rows) continue;
    const TensorSpec& spec = operation.request.signature.tensors[i];
    return Invalid(operation, "the result" +
                                  (operation.results.size() > 1 ? " " + std::to_string(i) : "") +
                                  " has shape " + ShapeText(rows, spec) +
                                  ", but the memory provided for it has shape " +
                                  ShapeText(memory.out_rows, spec) + "; it was not written");
  }
  return Status::Ok();
}

}  // namespace horoscale
