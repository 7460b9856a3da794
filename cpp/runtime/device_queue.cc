#include "runtime/device_queue.h"

#include <utility>

#include "backends/native/native.h"
#include "platform/clock.h"

namespace horoscale {
namespace {

// If NCCL can end its kernels at all, it does so within milliseconds.
constexpr double kAbortSeconds = 10;

// What NCCL sends between hosts is not encrypted.
NcclUse NcclUseOf(const Config& config, const Exchange& exchange) {
  if (config.encrypt && !exchange.hosts().empty()) return NcclUse::kNever;
  switch (config.backend) {
    case BackendChoice::kNative:
      return NcclUse::kNever;
    case BackendChoice::kNccl:
      return NcclUse::kRequired;
    default:
      return NcclUse::kAuto;
  }
}

}  // namespace

DeviceQueue::DeviceQueue(const Config& config, const SetPlace& place,
                         const PendingOperations& pending)
    : config_(config), place_(place), pending_(pending) {}

Result<std::unique_ptr<Collective>> DeviceQueue::Start(const Action& action, FusedOperation& fused,
                                                       Exchange& exchange, LaunchStamps& stamps) {
  if (!lane_) {
    CudaDevice* device = nullptr;
    for (const Piece& piece : action.pieces) {
      if (const Operation* const operation = pending_.Find(piece.token)) {
        device = operation->on_device->device;
      }
    }
    // A rank that has joined has no device.
    if (device == nullptr) return StartNative(exchange, fused);
    auto lane = DeviceLane::Create(*device, {.nccl = NcclUseOf(config_, exchange),
                                             .fusion_buffer = config_.device_fusion_buffer,
                                             .process_set_id = place_.id(),
                                             .ranks = place_.ranks});
    if (!lane.ok()) return lane.status();
    lane_ = lane.TakeValue();
  }
  if (fused.ready.empty()) return StartNative(exchange, fused);
  return lane_->Start(exchange, fused,
                      {stamps.OrderOf(action), place_.channel.incarnation, action.sequence});
}

// Kernels of a failing communicator end too, so check for failures after querying the device's
// progress.
Result<size_t> DeviceQueue::CountDone() {
  size_t done = 0;
  for (const Launched& launched : launched_) {
    const auto is_done = launched.fused->finished->IsDone();
    if (!is_done.ok()) return is_done.status();
    if (!*is_done) break;
    ++done;
  }
  HS_RETURN_IF_ERROR(lane_->Poll());
  return done;
}

DeviceQueue::Launched DeviceQueue::TakeFront() {
  Launched front = std::move(launched_.front());
  launched_.pop_front();
  return front;
}

void DeviceQueue::End(std::unique_ptr<FusedOperation> running,
                      std::unique_ptr<Collective> collective, bool is_used) {
  if (!lane_) return;
  if (running) {
    auto given = lane_->device().Record(lane_->stream());
    running->finished = given.ok() ? given.TakeValue() : nullptr;
    collective.reset();
    launched_.push_back({{}, std::move(running), 0});
  }
  // Even if nothing is executing here, a peer may still need this rank's part of completed work.
  const bool is_at_work = is_used || !launched_.empty();
  lane_->End(is_at_work ? NcclCommunicator::How::kAbort : NcclCommunicator::How::kTogether);
  abort_deadline_ = MonotonicSeconds() + kAbortSeconds;
}

bool DeviceQueue::IsOver(double now) const {
  if (launched_.empty() || now >= abort_deadline_) return true;
  if (!lane_->has_ended()) return false;
  for (const Launched& launched : launched_) {
    if (launched.fused->finished == nullptr) continue;
    const auto is_done = launched.fused->finished->IsDone();
    if (is_done.ok() && !*is_done) return false;
  }
  return true;
}

}  // namespace horoscale
