// A bucket by NCCL: sizes are exchanged where they may differ, results are allocated, and when it
// is the bucket's turn the calls are issued on the lane's stream.
#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/nccl/device_lane.h"
#include "backends/nccl/nccl_calls.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

class NcclBucket final : public Collective {
 public:
  NcclBucket(DeviceLane& lane, Exchange& exchange, FusedOperation& operation, LaunchTurn turn)
      : lane_(lane), exchange_(exchange), operation_(operation), turn_(turn) {
    if (HasFreeFirstDimension(operation.kind)) StartExchangeOfRows();
  }

  Result<Progress> Step() override {
    if (rows_exchange_ != nullptr) {
      const SealedChunks sealed(exchange_);  // all members act on the received counts
      const auto progress = rows_exchange_->Step();
      if (!progress.ok() || *progress != Progress::kDone) return progress;
      rows_exchange_.reset();
      HS_RETURN_IF_ERROR(AllocateResults());
      return Progress::kAdvanced;
    }
    if (!is_issued_) {
      if (!turn_.IsMine()) return Progress::kIdle;
      HS_RETURN_IF_ERROR(Issue());
      is_issued_ = true;
    }
    // NCCL may launch later in its own thread; keep the turn until then.
    const auto is_launched = lane_.communicator()->Poll();
    if (!is_launched.ok()) return is_launched.status();
    if (!*is_launched) return Progress::kIdle;
    HS_RETURN_IF_ERROR(Complete());
    turn_.Pass();
    return Progress::kDone;
  }

 private:
  // Each member sends the rows of its inputs (allgather), or of its part for each member
  // (alltoall).
  void StartExchangeOfRows() {
    if (operation_.kind == OpKind::kAlltoall) {
      own_rows_ = operation_.splits;
    } else {
      for (const FusedPiece& piece : operation_.pieces) own_rows_.push_back(piece.rows);
    }
    AllgatherArgs args;
    args.items = {{reinterpret_cast<const std::byte*>(own_rows_.data()), 1,
                   static_cast<int64_t>(own_rows_.size() * sizeof(int64_t))}};
    args.results = &all_rows_;
    rows_exchange_ = MakeAllgather(exchange_, std::move(args));
  }

  int64_t RowsFrom(uint32_t member, size_t index) const {
    int64_t rows = 0;
    const size_t at = member * own_rows_.size() + index;
    std::memcpy(&rows, all_rows_.front().data.get() + at * sizeof(rows), sizeof(rows));
    return rows;
  }

  Status AllocateResults() {
    const bool is_alltoall = operation_.kind == OpKind::kAlltoall;
    operation_.results.resize(operation_.pieces.size());
    for (size_t p = 0; p < operation_.pieces.size(); ++p) {
      AllgatherResult& result = operation_.results[p];
      int64_t bytes = 0;
      for (uint32_t member = 0; member < exchange_.size(); ++member) {
        result.rows.push_back(RowsFrom(member, is_alltoall ? exchange_.self() : p));
        if (!AddRowBytes(result.rows.back(), operation_.pieces[p].row_bytes, &bytes)) {
          return Status::Protocol("a rank sent an invalid size");
        }
      }
      if (bytes == 0) continue;
      auto memory = lane_.device().Allocate(static_cast<size_t>(bytes), lane_.stream(),
                                            operation_.ready.front().stream);
      if (!memory.ok()) return memory.status();
      result.data = memory.TakeValue();
    }
    return Status::Ok();
  }

  Status Issue() {
    HS_RETURN_IF_ERROR(WaitForInputs(lane_, operation_));
    HS_RETURN_IF_ERROR(lane_.device().PassGate(lane_.stream()));
    const bool fuses = lane_.options().fusion_buffer && operation_.kind == OpKind::kAllreduce &&
                       operation_.pieces.size() > 1;
    if (fuses) HS_RETURN_IF_ERROR(FillBuffer());
    const CudaContextScope scope(lane_.device());
    return IssueNccl({.communicator = lane_.communicator(),
                      .stream = lane_.stream(),
                      .self = exchange_.self(),
                      .size = exchange_.size(),
                      .fusion_buffer = buffer_},
                     operation_);
  }

  Status FillBuffer() {
    int64_t bytes = 0;
    for (const FusedPiece& piece : operation_.pieces) bytes += piece.bytes;
    if (bytes == 0) return Status::Ok();
    const auto buffer = lane_.FusionBuffer(bytes);
    if (!buffer.ok()) return buffer.status();
    buffer_ = *buffer;
    std::byte* to = buffer_;
    for (const FusedPiece& piece : operation_.pieces) {
      HS_RETURN_IF_ERROR(
          lane_.device().Copy(to, piece.in, static_cast<size_t>(piece.bytes), lane_.stream()));
      to += piece.bytes;
    }
    return Status::Ok();
  }

  Status Complete() {
    const std::byte* from = buffer_;
    for (const FusedPiece& piece : operation_.pieces) {
      if (buffer_ == nullptr) break;
      HS_RETURN_IF_ERROR(
          lane_.device().Copy(piece.out, from, static_cast<size_t>(piece.bytes), lane_.stream()));
      from += piece.bytes;
    }
    auto finished = lane_.device().Record(lane_.stream());
    if (!finished.ok()) return finished.status();
    operation_.finished = finished.TakeValue();
    operation_.by_nccl = true;
    return Status::Ok();
  }

  DeviceLane& lane_;
  Exchange& exchange_;
  FusedOperation& operation_;
  const LaunchTurn turn_;
  std::vector<int64_t> own_rows_;
  std::vector<AllgatherResult> all_rows_;
  std::unique_ptr<Collective> rows_exchange_;
  std::byte* buffer_ = nullptr;  // null: NCCL works on the tensors directly
  bool is_issued_ = false;
};

}  // namespace

std::unique_ptr<Collective> StartOnNccl(DeviceLane& lane, Exchange& exchange,
                                        FusedOperation& operation, LaunchTurn turn) {
  return std::make_unique<NcclBucket>(lane, exchange, operation, turn);
}

}  // namespace horoscale
