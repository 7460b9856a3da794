#include "backends/mpi/mpi_collectives.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "collectives/fold.h"

namespace horoscale {
namespace {

MpiHandle TypeOf(const MpiHandles& handles, DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return handles.uint8;
    case DataType::kInt8:
      return handles.int8;
    case DataType::kUint16:
      return handles.uint16;
    case DataType::kInt16:
      return handles.int16;
    case DataType::kInt32:
      return handles.int32;
    case DataType::kInt64:
      return handles.int64;
    case DataType::kFloat32:
      return handles.float32;
    case DataType::kFloat64:
      return handles.float64;
    default:
      return handles.byte;
  }
}

MpiHandle OpOf(const MpiHandles& handles, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return handles.min;
    case ReduceOp::kMax:
      return handles.max;
    case ReduceOp::kProduct:
      return handles.product;
    default:
      return handles.sum;
  }
}

bool IsReducedByMpi(const Reduction& reduction) {
  if (reduction.prescale != 1.0) return false;
  if (reduction.op >= ReduceOp::kBitwiseAnd || reduction.op == ReduceOp::kAdasum) return false;
  switch (reduction.dtype) {
    case DataType::kFloat32:
    case DataType::kFloat64:
      // MPI does not define the minimum or maximum of NaN.
      return reduction.op != ReduceOp::kMin && reduction.op != ReduceOp::kMax;
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
      return true;
    default:
      return false;
  }
}

// MPI counts in int, and a reducescatter can't be split.
bool IsCountedByInt(const FusedOperation& operation) {
  int64_t bytes = 0;
  for (const FusedPiece& piece : operation.pieces) bytes += piece.bytes;
  return bytes / static_cast<int64_t>(SizeOf(operation.reduction.dtype)) <= INT_MAX;
}

// The buffer that MPI reads and writes until an operation is done. It is separate from the tensors:
// MPI needs contiguous memory, and can't cancel an operation, so it may still write when the
// tensors of a failed operation have been freed.
struct MpiBucket {
  OwnedBytes data;
  std::vector<int> counts;  // elements for each rank (reducescatter)
};

// Allreduce, reducescatter or broadcast of a bucket, in place.
class MpiCollective final : public Collective {
 public:
  MpiCollective(std::shared_ptr<MpiSetCommunicator> communicator, FusedOperation& operation)
      : communicator_(std::move(communicator)), operation_(operation) {
    for (const FusedPiece& piece : operation_.pieces) bytes_ += piece.bytes;
  }
  ~MpiCollective() override {
    if (!in_flight_) return;
    MpiLibrary::Keep(std::move(bucket_));
    comm_->Keep();
    mpi_->ExitWithoutFinalize();
  }

  Result<Progress> Step() override {
    if (in_flight_) {
      int done = 0;
      MpiStatus status;
      HS_RETURN_IF_ERROR(mpi_->Check(mpi_->call().Test(&request_, &done, &status), "Test"));
      if (done == 0) return Progress::kIdle;
      in_flight_ = false;
      return Progress::kAdvanced;
    }
    if (begun_ == bytes_) {
      Unpack();
      return Progress::kDone;
    }
    if (comm_ == nullptr) {
      const auto made = communicator_->Get();
      if (!made.ok()) return made.status();
      if (*made == nullptr) return Progress::kIdle;
      comm_ = *made;
      mpi_ = &comm_->mpi();
      HS_RETURN_IF_ERROR(Pack());
    }
    HS_RETURN_IF_ERROR(Begin());
    return Progress::kAdvanced;
  }

 private:
  bool IsReduced() const { return operation_.kind != OpKind::kBroadcast; }
  bool IsScattered() const { return operation_.kind == OpKind::kReducescatter; }
  bool IsRoot() const { return MemberAt(comm_->rank()) == operation_.root; }
  // Members may have other ranks in a user's communicator.
  uint32_t MemberAt(int rank) const { return communicator_->MemberOf(rank); }
  int RankOfRoot() const {
    int rank = 0;
    while (MemberAt(rank) != operation_.root) ++rank;
    return rank;
  }
  int64_t unit() const {
    return IsReduced() ? static_cast<int64_t>(SizeOf(operation_.reduction.dtype)) : 1;
  }
  RowRange RowsFor(const FusedPiece& piece, int rank) const {
    return RowsOf(piece.rows, static_cast<uint32_t>(comm_->size()), MemberAt(rank));
  }

  Status Pack() {
    bucket_ = std::make_unique<MpiBucket>();
    bucket_->data.reset(static_cast<std::byte*>(std::malloc(static_cast<size_t>(bytes_))));
    if (bucket_->data == nullptr) {
      return {StatusCode::kSystem,
              "out of memory for a bucket of " + std::to_string(bytes_) + " bytes"};
    }
    if (IsScattered()) {
      PackByRank();
    } else if (IsReduced() || IsRoot()) {
      PackPieces();
    }
    return {};
  }

  // For each rank in turn: its rows of all pieces.
  void PackByRank() {
    std::byte* to = bucket_->data.get();
    for (int rank = 0; rank < comm_->size(); ++rank) {
      const std::byte* const begin = to;
      for (const FusedPiece& piece : operation_.pieces) {
        const RowRange rows = RowsFor(piece, rank);
        const int64_t bytes = rows.count * piece.row_bytes;
        if (bytes == 0) continue;
        std::memcpy(to, piece.in + rows.first * piece.row_bytes, static_cast<size_t>(bytes));
        to += bytes;
      }
      bucket_->counts.push_back(static_cast<int>((to - begin) / unit()));
    }
  }

  void PackPieces() {
    std::byte* to = bucket_->data.get();
    for (const FusedPiece& piece : operation_.pieces) {
      if (piece.bytes > 0) std::memcpy(to, piece.in, static_cast<size_t>(piece.bytes));
      to += piece.bytes;
    }
  }

  // MPI counts in int: larger buckets take several calls (never a reducescatter).
  Status Begin() {
    const MpiHandles& handles = mpi_->handles();
    const int64_t count = std::min<int64_t>((bytes_ - begun_) / unit(), INT_MAX);
    std::byte* const at = bucket_->data.get() + begun_;
    void* const in_place = reinterpret_cast<void*>(mpi_->constants().in_place);
    if (IsScattered()) {
      HS_RETURN_IF_ERROR(mpi_->Check(
          mpi_->call().Ireduce_scatter(
              in_place, at, bucket_->counts.data(), TypeOf(handles, operation_.reduction.dtype),
              OpOf(handles, operation_.reduction.op), comm_->handle(), &request_),
          "Ireduce_scatter"));
    } else if (IsReduced()) {
      HS_RETURN_IF_ERROR(mpi_->Check(
          mpi_->call().Iallreduce(
              in_place, at, static_cast<int>(count), TypeOf(handles, operation_.reduction.dtype),
              OpOf(handles, operation_.reduction.op), comm_->handle(), &request_),
          "Iallreduce"));
    } else {
      HS_RETURN_IF_ERROR(mpi_->Check(mpi_->call().Ibcast(at, static_cast<int>(count), handles.byte,
                                                         RankOfRoot(), comm_->handle(), &request_),
                                     "Ibcast"));
    }
    in_flight_ = true;
    begun_ += count * unit();
    return {};
  }

  // A fold of one operand applies the rest of an average: divisor and scale.
  void Unpack() {
    const std::byte* from = bucket_ == nullptr ? nullptr : bucket_->data.get();
    for (const FusedPiece& piece : operation_.pieces) {
      int64_t bytes = piece.bytes;
      if (bytes > 0 && IsScattered()) bytes = RowsFor(piece, comm_->rank()).count * piece.row_bytes;
      if (bytes > 0 && piece.out != nullptr) {
        if (IsReduced()) {
          Fold(operation_.reduction, piece.out, std::array{from}, bytes / unit());
        } else {
          std::memcpy(piece.out, from, static_cast<size_t>(bytes));
        }
      }
      from += bytes;
    }
  }

  const std::shared_ptr<MpiSetCommunicator> communicator_;
  FusedOperation& operation_;
  const MpiLibrary* mpi_ = nullptr;
  MpiCommunicator* comm_ = nullptr;  // null until it is created
  std::unique_ptr<MpiBucket> bucket_;
  int64_t bytes_ = 0;
  int64_t begun_ = 0;  // of bytes_
  MpiHandle request_ = 0;
  bool in_flight_ = false;
};

}  // namespace

bool IsServedByMpi(const FusedOperation& operation) {
  if (!operation.absent.empty() || !operation.encoding.IsNone()) return false;
  if (!operation.positions.empty() && FollowsOrder(operation.kind)) return false;
  if (operation.kind == OpKind::kBroadcast) return true;
  if (!IsReducedByMpi(operation.reduction)) return false;
  if (operation.kind == OpKind::kAllreduce) return true;
  return operation.kind == OpKind::kReducescatter && operation.splits.empty() &&
         IsCountedByInt(operation);
}

std::unique_ptr<Collective> StartMpi(std::shared_ptr<MpiSetCommunicator> communicator,
                                     FusedOperation& operation) {
  return std::make_unique<MpiCollective>(std::move(communicator), operation);
}

}  // namespace horoscale
