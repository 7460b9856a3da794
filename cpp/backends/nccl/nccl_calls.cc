#include "backends/nccl/nccl_calls.h"

#include <algorithm>
#include <cstring>

#include "collectives/float16.h"

namespace horoscale {
namespace {

// Complex numbers are pairs; booleans are the smallest integers: 0 and 1.
struct NcclType {
  int type = nccl::kUint8;
  int64_t bytes = 1;  // of one NCCL element
};

NcclType TypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return {nccl::kInt8, 1};
    case DataType::kInt32:
      return {nccl::kInt32, 4};
    case DataType::kInt64:
      return {nccl::kInt64, 8};
    case DataType::kFloat16:
      return {nccl::kFloat16, 2};
    case DataType::kBfloat16:
      return {nccl::kBfloat16, 2};
    case DataType::kFloat32:
    case DataType::kComplex64:
      return {nccl::kFloat32, 4};
    case DataType::kFloat64:
    case DataType::kComplex128:
      return {nccl::kFloat64, 8};
    default:
      return {nccl::kUint8, 1};
  }
}

// Operators that NCCL lacks.
constexpr int kNoOperator = -1;

int OperatorOf(const Reduction& reduction) {
  const bool is_bool = reduction.dtype == DataType::kBool;
  switch (reduction.op) {
    case ReduceOp::kAverage:
      return nccl::kAvg;
    case ReduceOp::kMin:
      return nccl::kMin;
    case ReduceOp::kMax:
      return nccl::kMax;
    case ReduceOp::kProduct:
      return is_bool ? nccl::kMin : nccl::kProd;
    case ReduceOp::kBitwiseAnd:
    case ReduceOp::kBitwiseOr:
    case ReduceOp::kBitwiseXor:
    case ReduceOp::kAdasum:
      return kNoOperator;
    default:
      return is_bool ? nccl::kMax : nccl::kSum;
  }
}

bool IsScaled(const Reduction& reduction) {
  return reduction.prescale != 1.0 || reduction.postscale != 1.0;
}

bool IsReducedByNccl(const Reduction& reduction) {
  if (OperatorOf(reduction) == kNoOperator) return false;
  const bool is_linear = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  if (IsScaled(reduction) && !(is_linear && IsFloating(reduction.dtype))) return false;
  if (IsFloating(reduction.dtype)) return is_linear || reduction.op == ReduceOp::kProduct;
  if (IsComplex(reduction.dtype)) return is_linear;
  return reduction.dtype != DataType::kUint16 && reduction.dtype != DataType::kInt16;
}

// The operator of one group: one of NCCL's own, or a scaled sum created for it.
class Operator {
 public:
  Operator(const NcclCommunicator& communicator, const Reduction& reduction)
      : communicator_(communicator), op_(OperatorOf(reduction)) {
    if (!IsScaled(reduction)) return;
    double factor = reduction.prescale * reduction.postscale;
    if (reduction.op == ReduceOp::kAverage) factor /= static_cast<double>(reduction.divisor);
    alignas(8) std::byte scalar[8] = {};
    Store(reduction.dtype, factor, scalar);
    const NcclLibrary& library = communicator.library();
    status_ = library.Check(
        library.call().ncclRedOpCreatePreMulSum(&op_, scalar, TypeOf(reduction.dtype).type,
                                                nccl::kScalarInHostMemory, communicator.handle()),
        "ncclRedOpCreatePreMulSum", communicator.handle());
    is_own_ = status_.ok();
  }
  ~Operator() {
    if (!is_own_) return;
    (void)communicator_.library().call().ncclRedOpDestroy(op_, communicator_.handle());
  }
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  int get() const { return op_; }
  const Status& status() const { return status_; }

 private:
  static void Store(DataType dtype, double value, std::byte* to) {
    const auto single = static_cast<float>(value);
    if (dtype == DataType::kFloat64) {
      std::memcpy(to, &value, sizeof(value));
    } else if (dtype == DataType::kFloat32) {
      std::memcpy(to, &single, sizeof(single));
    } else {
      const uint32_t bits = BitsOfFloat(single);
      const auto half =
          dtype == DataType::kFloat16 ? Float16FromFloatBits(bits) : Bfloat16FromFloatBits(bits);
      std::memcpy(to, &half, sizeof(half));
    }
  }

  const NcclCommunicator& communicator_;
  int op_;
  bool is_own_ = false;
  Status status_;
};

// One group of calls on one communicator and stream. Keeps the first failure.
class Group {
 public:
  explicit Group(const NcclCallContext& context)
      : context_(context), library_(context.communicator->library()), call_(library_.call()) {
    Keep(call_.ncclGroupStart(), "ncclGroupStart");
  }

  void AllReduce(const std::byte* in, std::byte* out, int64_t bytes, NcclType type, int op) {
    Keep(call_.ncclAllReduce(in, out, Count(bytes, type), type.type, op, Comm(), context_.stream),
         "ncclAllReduce");
  }
  void Reduce(const std::byte* in, std::byte* out, int64_t bytes, NcclType type, int op,
              uint32_t root) {
    Keep(call_.ncclReduce(in, out, Count(bytes, type), type.type, op, static_cast<int>(root),
                          Comm(), context_.stream),
         "ncclReduce");
  }
  void ReduceScatter(const std::byte* in, std::byte* out, int64_t bytes, NcclType type, int op) {
    Keep(call_.ncclReduceScatter(in, out, Count(bytes, type), type.type, op, Comm(),
                                 context_.stream),
         "ncclReduceScatter");
  }
  void Broadcast(const std::byte* in, std::byte* out, int64_t bytes, uint32_t root) {
    Keep(call_.ncclBroadcast(in, out, static_cast<size_t>(bytes), nccl::kUint8,
                             static_cast<int>(root), Comm(), context_.stream),
         "ncclBroadcast");
  }
  void AllGather(const std::byte* in, std::byte* out, int64_t bytes) {
    Keep(call_.ncclAllGather(in, out, static_cast<size_t>(bytes), nccl::kUint8, Comm(),
                             context_.stream),
         "ncclAllGather");
  }
  void Send(const std::byte* in, int64_t bytes, uint32_t peer) {
    Keep(call_.ncclSend(in, static_cast<size_t>(bytes), nccl::kUint8, static_cast<int>(peer),
                        Comm(), context_.stream),
         "ncclSend");
  }
  void Receive(std::byte* out, int64_t bytes, uint32_t peer) {
    Keep(call_.ncclRecv(out, static_cast<size_t>(bytes), nccl::kUint8, static_cast<int>(peer),
                        Comm(), context_.stream),
         "ncclRecv");
  }

  // A started group must be ended, even after a failure in it.
  Status End() {
    Keep(call_.ncclGroupEnd(), "ncclGroupEnd");
    return status_;
  }

 private:
  NcclCommHandle Comm() const { return context_.communicator->handle(); }
  static size_t Count(int64_t bytes, NcclType type) {
    return static_cast<size_t>(bytes / type.bytes);
  }
  void Keep(int result, const char* function) {
    if (status_.ok()) status_ = library_.Check(result, function, Comm());
  }

  const NcclCallContext& context_;
  const NcclLibrary& library_;
  const NcclFunctions& call_;
  Status status_;
};

// Adjacent parts of one tensor are one call. Tensors that happen to be adjacent are not: the number
// of calls may depend only on the plan, because it must be equal on all members.
std::vector<FusedPiece> Joined(const std::vector<FusedPiece>& pieces) {
  std::vector<FusedPiece> joined;
  for (const FusedPiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    if (piece.continues) {
      joined.back().bytes += piece.bytes;
    } else {
      joined.push_back(piece);
    }
  }
  return joined;
}

void IssueAllreduce(const NcclCallContext& context, const FusedOperation& operation, int op,
                    Group& group) {
  const NcclType type = TypeOf(operation.reduction.dtype);
  if (context.fusion_buffer != nullptr) {
    int64_t bytes = 0;
    for (const FusedPiece& piece : operation.pieces) bytes += piece.bytes;
    group.AllReduce(context.fusion_buffer, context.fusion_buffer, bytes, type, op);
    return;
  }
  for (const FusedPiece& piece : Joined(operation.pieces)) {
    group.AllReduce(piece.in, piece.out, piece.bytes, type, op);
  }
}

// NCCL's own operation requires equal rows on all ranks.
void IssueReducescatter(const NcclCallContext& context, const FusedOperation& operation, int op,
                        Group& group) {
  const NcclType type = TypeOf(operation.reduction.dtype);
  for (const FusedPiece& piece : operation.pieces) {
    if (piece.rows * piece.row_bytes == 0) continue;
    if (operation.splits.empty() && piece.rows % context.size == 0) {
      group.ReduceScatter(piece.in, piece.out, piece.rows / context.size * piece.row_bytes, type,
                          op);
      continue;
    }
    for (uint32_t member = 0; member < context.size; ++member) {
      const RowRange range = RowsOf(operation.splits, piece.rows, context.size, member);
      if (range.count == 0) continue;
      group.Reduce(piece.in + range.first * piece.row_bytes, piece.out,
                   range.count * piece.row_bytes, type, op, member);
    }
  }
}

void IssueReduce(const FusedOperation& operation, int op, Group& group) {
  const NcclType type = TypeOf(operation.reduction.dtype);
  for (const FusedPiece& piece : Joined(operation.pieces)) {
    group.Reduce(piece.in, piece.out, piece.bytes, type, op, operation.root);
  }
}

void IssueAllgather(const NcclCallContext& context, const FusedOperation& operation, Group& group) {
  const size_t pieces = operation.pieces.size();
  for (size_t p = 0; p < pieces; ++p) {
    const FusedPiece& piece = operation.pieces[p];
    const std::vector<int64_t>& rows = operation.results[p].rows;
    std::byte* out = operation.results[p].data.get();
    if (out == nullptr) continue;
    const bool even =
        std::all_of(rows.begin(), rows.end(), [&](int64_t count) { return count == rows.front(); });
    if (even) {
      group.AllGather(piece.in, out, rows.front() * piece.row_bytes);
      continue;
    }
    for (uint32_t member = 0; member < context.size; ++member) {
      const int64_t bytes = rows[member] * piece.row_bytes;
      if (bytes > 0) group.Broadcast(member == context.self ? piece.in : out, out, bytes, member);
      out += bytes;
    }
  }
}

void IssueAlltoall(const NcclCallContext& context, const FusedOperation& operation, Group& group) {
  const FusedPiece& piece = operation.pieces.front();
  const std::byte* in = piece.in;
  std::byte* out = operation.results.front().data.get();
  for (uint32_t member = 0; member < context.size; ++member) {
    const int64_t sent = operation.splits[member] * piece.row_bytes;
    const int64_t received = operation.results.front().rows[member] * piece.row_bytes;
    if (sent > 0) group.Send(in, sent, member);
    if (received > 0) group.Receive(out, received, member);
    in += sent;
    out += received;
  }
}

void IssueBroadcast(const FusedOperation& operation, Group& group) {
  for (const FusedPiece& piece : operation.pieces) {
    if (piece.bytes == 0) continue;
    group.Broadcast(piece.in == nullptr ? piece.out : piece.in, piece.out, piece.bytes,
                    operation.root);
  }
}

}  // namespace

bool IsServedByNccl(const FusedOperation& operation) {
  // NCCL would need a kernel even on joined ranks, which have no data.
  if (!operation.absent.empty()) return false;
  // NCCL orders the members by rank.
  if (!operation.positions.empty() && FollowsOrder(operation.kind)) return false;
  if (operation.kind == OpKind::kGather || operation.kind == OpKind::kScatter) return false;
  return !Reduces(operation.kind) || IsReducedByNccl(operation.reduction);
}

Status IssueNccl(const NcclCallContext& context, FusedOperation& operation) {
  const bool reduces = Reduces(operation.kind);
  const Operator op(*context.communicator, reduces ? operation.reduction : Reduction{});
  HS_RETURN_IF_ERROR(op.status());
  Group group(context);
  switch (operation.kind) {
    case OpKind::kAllreduce:
      IssueAllreduce(context, operation, op.get(), group);
      break;
    case OpKind::kReducescatter:
      IssueReducescatter(context, operation, op.get(), group);
      break;
    case OpKind::kReduce:
      IssueReduce(operation, op.get(), group);
      break;
    case OpKind::kAllgather:
      IssueAllgather(context, operation, group);
      break;
    case OpKind::kAlltoall:
      IssueAlltoall(context, operation, group);
      break;
    default:
      IssueBroadcast(operation, group);
      break;
  }
  return group.End();
}

}  // namespace horoscale
