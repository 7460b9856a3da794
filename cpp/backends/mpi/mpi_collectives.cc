#include "backends/mpi/mpi_collectives.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

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
  switch (reduction.dtype) {
    case DataType::kFloat32:
    case DataType::kFloat64:
      // MPI does not say what its minimum of NaN is.
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

// Allreduce or broadcast of a bucket, in a buffer of its own: MPI wants contiguous memory, and
// can't take an operation back, so that it may still write where a failed one's tensors are long
// gone.
class MpiCollective final : public Collective {
 public:
  MpiCollective(std::shared_ptr<MpiSetCommunicator> communicator, FusedOperation& operation)
      : communicator_(std::move(communicator)), operation_(operation) {
    for (const FusedPiece& piece : operation_.pieces) bytes_ += piece.bytes;
  }
  ~MpiCollective() override {
    if (!in_flight_) return;
    (void)buffer_.release();
    communicator_->Abandon();
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
  bool IsAllreduce() const { return operation_.kind == OpKind::kAllreduce; }
  bool IsRoot() const { return comm_->rank() == static_cast<int>(operation_.root); }

  Status Pack() {
    buffer_.reset(static_cast<std::byte*>(std::malloc(static_cast<size_t>(bytes_))));
    if (buffer_ == nullptr) {
      return {StatusCode::kSystem,
              "no memory for a bucket of " + std::to_string(bytes_) + " bytes"};
    }
    if (!IsAllreduce() && !IsRoot()) return {};
    std::byte* to = buffer_.get();
    for (const FusedPiece& piece : operation_.pieces) {
      if (piece.bytes > 0) std::memcpy(to, piece.in, static_cast<size_t>(piece.bytes));
      to += piece.bytes;
    }
    return {};
  }

  // MPI counts in int.
  Status Begin() {
    const MpiHandles& handles = mpi_->handles();
    const int64_t unit =
        IsAllreduce() ? static_cast<int64_t>(SizeOf(operation_.reduction.dtype)) : 1;
    const int64_t count = std::min<int64_t>((bytes_ - begun_) / unit, INT_MAX);
    std::byte* const at = buffer_.get() + begun_;
    if (IsAllreduce()) {
      void* const in_place = reinterpret_cast<void*>(mpi_->constants().in_place);
      HS_RETURN_IF_ERROR(mpi_->Check(
          mpi_->call().Iallreduce(
              in_place, at, static_cast<int>(count), TypeOf(handles, operation_.reduction.dtype),
              OpOf(handles, operation_.reduction.op), comm_->handle(), &request_),
          "Iallreduce"));
    } else {
      HS_RETURN_IF_ERROR(mpi_->Check(
          mpi_->call().Ibcast(at, static_cast<int>(count), handles.byte,
                              static_cast<int>(operation_.root), comm_->handle(), &request_),
          "Ibcast"));
    }
    in_flight_ = true;
    begun_ += count * unit;
    return {};
  }

  // A fold of one operand is what remains of an average: divisor and scale.
  void Unpack() {
    const std::byte* from = buffer_.get();
    const auto unit = static_cast<int64_t>(SizeOf(operation_.reduction.dtype));
    for (const FusedPiece& piece : operation_.pieces) {
      if (piece.bytes > 0 && piece.out != nullptr) {
        if (IsAllreduce()) {
          Fold(operation_.reduction, piece.out, std::array{from}, piece.bytes / unit);
        } else {
          std::memcpy(piece.out, from, static_cast<size_t>(piece.bytes));
        }
      }
      from += piece.bytes;
    }
  }

  const std::shared_ptr<MpiSetCommunicator> communicator_;
  FusedOperation& operation_;
  const MpiLibrary* mpi_ = nullptr;
  const MpiCommunicator* comm_ = nullptr;  // null until it is made
  OwnedBytes buffer_;
  int64_t bytes_ = 0;
  int64_t begun_ = 0;  // of them
  MpiHandle request_ = 0;
  bool in_flight_ = false;
};

}  // namespace

bool IsServedByMpi(const FusedOperation& operation) {
  if (!operation.absent.empty() || operation.wire) return false;
  if (operation.kind == OpKind::kBroadcast) return true;
  return operation.kind == OpKind::kAllreduce && IsReducedByMpi(operation.reduction);
}

std::unique_ptr<Collective> StartMpi(std::shared_ptr<MpiSetCommunicator> communicator,
                                     FusedOperation& operation) {
  return std::make_unique<MpiCollective>(std::move(communicator), operation);
}

}  // namespace horoscale
