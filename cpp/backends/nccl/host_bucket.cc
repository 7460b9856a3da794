// A bucket without NCCL: copied into pinned host memory, executed by the native backend, and copied
// back. The host waits for neither copy.
#include <utility>

#include "backends/native/native.h"
#include "backends/nccl/device_lane.h"

namespace horoscale {
namespace {

class HostBucket final : public Collective {
 public:
  HostBucket(DeviceLane& lane, Exchange& exchange, FusedOperation& operation)
      : lane_(lane), exchange_(exchange), operation_(operation) {}

  Result<Progress> Step() override {
    if (copied_in_ == nullptr) {
      HS_RETURN_IF_ERROR(CopyIn());
      return Progress::kAdvanced;
    }
    if (native_ == nullptr) {
      const auto is_done = copied_in_->IsDone();
      if (!is_done.ok()) return is_done.status();
      if (!*is_done) return Progress::kIdle;
      native_ = StartNative(exchange_, host_);
    }
    const auto progress = native_->Step();
    if (!progress.ok() || *progress != Progress::kDone) return progress;
    HS_RETURN_IF_ERROR(CopyOut());
    return Progress::kDone;
  }

 private:
  static int64_t InputBytes(OpKind kind, const FusedPiece& piece) {
    const bool has_rows = HasFreeFirstDimension(kind) || kind == OpKind::kReducescatter;
    return has_rows ? piece.rows * piece.row_bytes : piece.bytes;
  }
  int64_t OutputBytes(const FusedPiece& piece) const {
    if (operation_.kind != OpKind::kReducescatter) return piece.bytes;
    const RowRange own = RowsOf(operation_.splits, piece.rows, exchange_.size(),
                                operation_.PositionOf(exchange_.self()));
    return own.count * piece.row_bytes;
  }

  Status CopyIn() {
    host_.kind = operation_.kind;
    host_.reduction = operation_.reduction;
    host_.root = operation_.root;
    host_.absent = operation_.absent;
    host_.splits = operation_.splits;
    host_.positions = operation_.positions;
    host_.encoding = operation_.encoding;
    HS_RETURN_IF_ERROR(WaitForInputs(lane_, operation_));
    for (const FusedPiece& piece : operation_.pieces) {
      FusedPiece on_host = piece;
      const int64_t bytes = InputBytes(operation_.kind, piece);
      const auto memory = Hold(bytes);
      if (!memory.ok()) return memory.status();
      // One buffer for both, unless the result has another size than the input.
      const bool apart = operation_.kind == OpKind::kReducescatter;
      const auto result = apart ? Hold(OutputBytes(piece)) : memory;
      if (!result.ok()) return result.status();
      on_host.in = piece.in == nullptr ? nullptr : *memory;
      on_host.out = piece.out == nullptr ? nullptr : *result;
      if (piece.in != nullptr) {
        HS_RETURN_IF_ERROR(
            lane_.device().Copy(*memory, piece.in, static_cast<size_t>(bytes), lane_.stream()));
      }
      host_.pieces.push_back(on_host);
    }
    auto copied = lane_.device().Record(lane_.stream());
    if (!copied.ok()) return copied.status();
    copied_in_ = copied.TakeValue();
    return Status::Ok();
  }

  // Pinned memory that is kept until the device is done; null for no bytes.
  Result<std::byte*> Hold(int64_t bytes) {
    if (bytes == 0) return static_cast<std::byte*>(nullptr);
    auto pinned = lane_.device().AllocatePinned(static_cast<size_t>(bytes));
    if (!pinned.ok()) return pinned.status();
    operation_.held.push_back(pinned.TakeValue());
    return operation_.held.back().get();
  }

  Status CopyOut() {
    for (size_t p = 0; p < operation_.pieces.size(); ++p) {
      const FusedPiece& piece = operation_.pieces[p];
      if (piece.out == nullptr || host_.pieces[p].out == nullptr) continue;
      HS_RETURN_IF_ERROR(lane_.device().Copy(
          piece.out, host_.pieces[p].out, static_cast<size_t>(OutputBytes(piece)), lane_.stream()));
    }
    operation_.results.resize(host_.results.size());
    for (size_t p = 0; p < host_.results.size(); ++p) {
      HS_RETURN_IF_ERROR(CopyResult(p));
    }
    auto finished = lane_.device().Record(lane_.stream());
    if (!finished.ok()) return finished.status();
    operation_.finished = finished.TakeValue();
    return Status::Ok();
  }

  Status CopyResult(size_t p) {
    AllgatherResult& from = host_.results[p];
    AllgatherResult& to = operation_.results[p];
    to.rows = from.rows;
    int64_t bytes = 0;
    for (const int64_t rows : from.rows) bytes += rows * operation_.pieces[p].row_bytes;
    if (bytes == 0) return Status::Ok();
    auto memory = lane_.device().Allocate(static_cast<size_t>(bytes), lane_.stream(),
                                          operation_.ready.front().stream);
    if (!memory.ok()) return memory.status();
    to.data = memory.TakeValue();
    HS_RETURN_IF_ERROR(lane_.device().Copy(to.data.get(), from.data.get(),
                                           static_cast<size_t>(bytes), lane_.stream()));
    operation_.held.push_back(std::move(from.data));
    return Status::Ok();
  }

  DeviceLane& lane_;
  Exchange& exchange_;
  FusedOperation& operation_;
  FusedOperation host_;
  CudaEventPtr copied_in_;
  std::unique_ptr<Collective> native_;
};

}  // namespace

std::unique_ptr<Collective> StartThroughHost(DeviceLane& lane, Exchange& exchange,
                                             FusedOperation& operation) {
  return std::make_unique<HostBucket>(lane, exchange, operation);
}

}  // namespace horoscale
