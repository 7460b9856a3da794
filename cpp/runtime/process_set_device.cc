// A process set's operations on CUDA tensors: whose turn it is to launch, what is at work on the
// device, and how that is made to end.
#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "backends/native/native.h"
#include "platform/clock.h"
#include "runtime/process_set.h"

namespace horoscale {
namespace {

// NCCL ends its kernels within milliseconds where it can end them at all.
constexpr double kAbortSeconds = 10;
constexpr std::chrono::milliseconds kClosePause(1);

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

bool IsLaunchedByNccl(const Action& action) {
  return action.type == Action::Type::kExecute && action.common.on_device && action.absent.empty();
}

}  // namespace

Status ProcessSet::StartOnDevice(const Action& action) {
  ++counters_.device_buckets;
  if (!lane_) {
    CudaDevice* device = nullptr;
    for (const Piece& piece : action.pieces) {
      if (const Operation* const operation = Find(piece.token))
        device = operation->on_device->device;
    }
    if (device == nullptr) {  // this rank has joined, and has no device
      collective_ = StartNative(*exchange_, *fused_);
      return Status::Ok();
    }
    auto lane = DeviceLane::Create(*device, {.nccl = NcclUseOf(config_, *exchange_),
                                             .fusion_buffer = config_.device_fusion_buffer,
                                             .process_set_id = id(),
                                             .ranks = ranks_});
    if (!lane.ok()) return lane.status();
    lane_ = lane.TakeValue();
  }
  if (fused_->ready.empty()) {
    collective_ = StartNative(*exchange_, *fused_);
    return Status::Ok();
  }
  LaunchOrder& launches = host_.launch_order();
  const bool has_turn = launches.Has(channel_.incarnation, action.sequence);
  LaunchOrder* const order = has_turn ? &launches : nullptr;
  collective_ = lane_->Start(*exchange_, *fused_, {order, channel_.incarnation, action.sequence});
  return Status::Ok();
}

// Whether it ends with the device's work. What has failed, and what a joined rank has no tensors
// in, ends when its turn comes.
bool ProcessSet::IsLaunched(const Action& action) const {
  return action.type == Action::Type::kExecute && action.common.on_device &&
         std::any_of(action.pieces.begin(), action.pieces.end(),
                     [this](const Piece& piece) { return Find(piece.token) != nullptr; });
}

// Which entries are stamped follows from the plan alone: those of the global set from the first
// registration on, and all of other sets.
void ProcessSet::ProposeLaunch(const Action& action) {
  if (action.common.kind == OpKind::kAddProcessSet) has_company_ = true;
  if (!has_company_ || !IsLaunchedByNccl(action) || ranks_.size() < 2) return;
  const LaunchStamp proposal{action.sequence,
                             host_.launch_order().Propose(channel_.incarnation, action.sequence)};
  if (collector_) {
    (void)CollectStamp(0, proposal);  // own ones are in order
  } else {
    transport_.Send(ranks_.front(), {FrameKind::kLaunch, channel_}, Encode(proposal));
  }
}

Status ProcessSet::TakeStamp(int from_rank, std::span<const std::byte> payload) {
  const auto stamp = DecodeLaunchStamp(payload);
  if (!stamp.ok()) return stamp.status();
  if (collector_ && Contains(from_rank)) {
    const auto place = std::lower_bound(ranks_.begin(), ranks_.end(), from_rank);
    return CollectStamp(static_cast<uint32_t>(place - ranks_.begin()), *stamp);
  }
  if (from_rank == ranks_.front()) {
    return host_.launch_order().Agree(channel_.incarnation, *stamp);
  }
  return Status::Protocol("a launch stamp that is not its to send");
}

Status ProcessSet::CollectStamp(uint32_t member, LaunchStamp proposal) {
  const auto decision = collector_->Add(member, proposal);
  if (!decision.ok()) return decision.status();
  if (!*decision) return Status::Ok();
  const std::vector<std::byte> bytes = Encode(**decision);
  for (const int rank : ranks_) {
    if (rank != transport_.rank()) transport_.Send(rank, {FrameKind::kLaunch, channel_}, bytes);
  }
  return host_.launch_order().Agree(channel_.incarnation, **decision);
}

// The device has its work: callers may let their streams wait for it, and the next bucket may
// follow.
void ProcessSet::OnFrontLaunched() {
  TakeResults(queue_.front(), *fused_);
  for (const Token token : queue_.front().finished) {
    Operation* const operation = Find(token);
    if (operation == nullptr || !operation->on_device) continue;
    operation->on_device->finished = fused_->finished;
    operation->on_device->launched.store(true);
  }
  if (fused_->by_nccl) ++counters_.nccl_buckets;
  collective_.reset();
  launched_.push_back({std::move(queue_.front()), std::move(fused_), started_at_});
  queue_.pop_front();
  host_.OnLaunched();
}

// Ends what the device has done, in the order of the plan. Kernels of a communicator that fails end
// too: whether it has failed is asked after how far the device is.
bool ProcessSet::FinishLaunched(double now) {
  size_t done = 0;
  for (const Launched& launched : launched_) {
    const auto is_done = launched.fused->finished->IsDone();
    if (!is_done.ok()) {
      Poison(is_done.status());
      return true;
    }
    if (!*is_done) break;
    ++done;
  }
  if (Status status = lane_->Poll(); !status.ok()) {
    Poison(status);
    return true;
  }
  const bool moved = done > 0;
  for (; done > 0 && !launched_.empty(); --done) {
    const Launched launched = std::move(launched_.front());
    launched_.pop_front();
    progressed_at_ = now;
    FinishAction(launched.action, launched.fused.get(), launched.started_at, now);
  }
  return moved;
}

// The set has failed, or is at its end. Kernels that wait for a lost rank end only by force.
void ProcessSet::EndLane() {
  host_.launch_order().RemoveSet(channel_.incarnation);
  if (!lane_) return;
  if (collective_ && !fused_->ready.empty()) {  // it may have given the device something to do
    auto given = lane_->device().Record(lane_->stream());
    fused_->finished = given.ok() ? given.TakeValue() : nullptr;
    collective_.reset();
    launched_.push_back({{}, std::move(fused_), 0});
  }
  // Where nothing is at work a peer may still need this rank's part of what is done here.
  lane_->End(launched_.empty() ? NcclCommunicator::How::kTogether : NcclCommunicator::How::kAbort);
  abort_deadline_ = MonotonicSeconds() + kAbortSeconds;
}

// Operations whose tensors a kernel may still write to end with the kernel: their memory is the
// caller's again from then on.
bool ProcessSet::FinishFailed(double now) {
  if (!launched_.empty() && now < abort_deadline_) {
    if (!lane_->has_ended()) return false;
    for (const Launched& launched : launched_) {
      if (launched.fused->finished == nullptr) continue;
      const auto is_done = launched.fused->finished->IsDone();
      if (is_done.ok() && !*is_done) return false;
    }
  }
  const bool moved = !launched_.empty() || !pending_.empty();
  launched_.clear();
  while (!pending_.empty()) FinishToken(pending_.begin()->first, failure_);
  return moved;
}

void ProcessSet::Close(double seconds) {
  const double deadline = MonotonicSeconds() + seconds;
  while (lane_ && MonotonicSeconds() < deadline && (!lane_->has_ended() || !launched_.empty())) {
    if (!FinishFailed(MonotonicSeconds())) std::this_thread::sleep_for(kClosePause);
  }
  (void)FinishFailed(std::numeric_limits<double>::infinity());
}

}  // namespace horoscale
