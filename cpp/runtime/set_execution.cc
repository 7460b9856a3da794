#include "runtime/set_execution.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "backends/mpi/mpi_collectives.h"
#include "backends/native/native.h"
#include "collectives/adasum.h"
#include "collectives/adasum_stages.h"

namespace horoscale {
namespace {

// MPI's own operations must be polled. The sleep is a fraction of their time so far, which limits
// the added latency.
constexpr double kMpiSleepShare = 0.125;
constexpr double kLeastMpiSleepSeconds = 50e-6;
constexpr double kMostMpiSleepSeconds = 1e-3;

}  // namespace

SetExecution::SetExecution(Owner& owner, SetHost& host, Transport& transport, const Config& config,
                           const SetPlace& place, const PendingOperations& pending,
                           SetCounters& counters, std::shared_ptr<MpiSetCommunicator> mpi)
    : owner_(owner),
      host_(host),
      transport_(transport),
      place_(place),
      pending_(pending),
      counters_(counters),
      mpi_(std::move(mpi)),
      residuals_(std::make_shared<SetResiduals>(place)),
      stamps_(host.launch_order(), transport, place),
      device_(config, place, pending) {}

void SetExecution::OnPlanned(Action action, double now) {
  for (const Piece& piece : action.pieces) {
    Operation* const operation = pending_.Find(piece.token);
    if (operation == nullptr || operation->planned_at != 0) continue;
    operation->planned_at = now;
    counters_.negotiate_seconds += now - operation->enqueued_at;
  }
  stamps_.Propose(action);
  queue_.push_back(std::move(action));
}

Status SetExecution::OnStamp(int from_rank, std::span<const std::byte> payload) {
  return stamps_.OnFrame(from_rank, payload);
}

double SetExecution::MaxSleepSeconds(double now) const {
  if (collective_ == nullptr || !is_run_by_mpi_) return std::numeric_limits<double>::infinity();
  return std::clamp(kMpiSleepShare * (now - progressed_at_), kLeastMpiSleepSeconds,
                    kMostMpiSleepSeconds);
}

Result<bool> SetExecution::Step(double now) {
  bool moved = false;
  if (!device_.empty()) {
    const auto ended = EndLaunched(now);
    if (!ended.ok()) return ended;
    moved = *ended;
  }
  if (abandoned_ || queue_.empty()) return moved;
  if (!collective_) {
    // Actions end in the order of the plan.
    if (!device_.empty() && !IsLaunched(queue_.front())) return moved;
    HS_RETURN_IF_ERROR(Start(queue_.front(), now));
  }
  if (collective_) {
    const auto progress = collective_->Step();
    if (!progress.ok()) return progress.status();
    if (*progress == Progress::kIdle) return moved;
    progressed_at_ = now;
    if (*progress != Progress::kDone) return true;
  }
  if (fused_ && fused_->finished != nullptr) {
    OnFrontLaunched();
  } else {
    EndFront(now);
  }
  return true;
}

Status SetExecution::Start(const Action& action, double now) {
  started_at_ = progressed_at_ = now;
  for (const Piece& piece : action.pieces) {
    Operation* const operation = pending_.Find(piece.token);
    if (operation == nullptr) continue;
    if (operation->started_at == 0) operation->started_at = now;
    operation->plan_entry = action.sequence;
    operation->bucket_tensors = action.pieces.size();
  }
  if (action.type != Action::Type::kExecute) return Status::Ok();
  switch (action.common.kind) {
    case OpKind::kAllreduce:
    case OpKind::kAllgather:
    case OpKind::kBroadcast:
    case OpKind::kAlltoall:
    case OpKind::kReducescatter:
    case OpKind::kReduce:
    case OpKind::kGather:
    case OpKind::kScatter:
      return StartBucket(action);
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kBarrier:
    case OpKind::kJoin:
      return Status::Ok();
  }
  return Status::Ok();
}

Status SetExecution::StartBucket(const Action& action) {
  fused_ = std::make_unique<FusedOperation>();
  const Terms& common = action.common;
  fused_->kind = common.kind;
  fused_->absent = action.absent;
  fused_->positions = place_.positions;
  fused_->reduction = {action.dtype, common.reduce_op, common.prescale, common.postscale,
                       static_cast<int64_t>(action.divisor)};
  if (common.encoding.IsFor(action.dtype)) fused_->encoding = common.encoding;
  if (common.reduce_op == ReduceOp::kAdasum) {
    const auto group = AdasumGroup(place_.ranks, std::max(common.adasum_start_level, 1));
    // If this rank has joined, Adasum was not compared with a request of its own.
    if (!group || common.kind != OpKind::kAllreduce || !HasAdasum(action.dtype)) {
      return Status::Protocol("there is no such Adasum of this set");
    }
    fused_->reduction.group = *group;
  }
  if (HasRoot(common.kind)) {
    // If this rank has joined, the root was not compared with a request of its own.
    if (!place_.Contains(common.root)) return Status::Protocol("the root is not a member");
    fused_->root = place_.IndexOf(common.root);
  }
  const auto element_bytes = static_cast<int64_t>(SizeOf(action.dtype));
  const Piece* before = nullptr;
  for (const Piece& piece : action.pieces) {
    FusedPiece run;
    run.continues = before != nullptr && piece.Continues(*before);
    before = &piece;
    run.bytes = piece.count * element_bytes;
    if (const Operation* const operation = pending_.Find(piece.token)) {
      const TensorMemory& memory = operation->tensors[piece.tensor];
      const int64_t offset = piece.begin * element_bytes;
      run.in = memory.in == nullptr ? nullptr : memory.in + offset;
      run.out = memory.out == nullptr ? nullptr : memory.out + offset;
      run.rows = memory.rows;
      run.row_bytes = memory.row_bytes;
      run.out_rows = memory.out_rows;
      fused_->splits = operation->splits;
      fused_->sealed |= operation->sealed;
      if (operation->on_device) fused_->ready.push_back(operation->on_device->ready);
    }
    counters_.bytes += static_cast<uint64_t>(run.bytes);
    fused_->pieces.push_back(run);
  }
  ++counters_.buckets;
  if (action.pieces.size() > 1) counters_.fused_tensors += action.pieces.size();
  return StartCollective(action);
}

Status SetExecution::StartCollective(const Action& action) {
  const bool on_device = action.common.on_device;
  is_run_by_mpi_ = mpi_ != nullptr && !on_device && IsServedByMpi(*fused_);
  if (is_run_by_mpi_) {
    ++counters_.mpi_buckets;
    collective_ = StartMpi(mpi_, *fused_);
    return Status::Ok();
  }
  if (!exchange_) {
    auto exchange = transport_.Open(place_.channel, place_.ranks);
    if (!exchange.ok()) return exchange.status();
    exchange_ = exchange.TakeValue();
  }
  exchange_->sealed = fused_->sealed;
  if (!on_device) {
    FindResiduals(action);
    collective_ = StartNative(*exchange_, *fused_);
    return Status::Ok();
  }
  ++counters_.device_buckets;
  auto started = device_.Start(action, *fused_, *exchange_, stamps_);
  if (!started.ok()) return started.status();
  collective_ = started.TakeValue();
  return Status::Ok();
}

// Finds the residuals of each piece.
void SetExecution::FindResiduals(const Action& action) {
  const Encoding& encoding = fused_->encoding;
  if (!encoding.IsLossy() || exchange_->hosts().empty() || !action.absent.empty()) return;
  fused_->encoded = &counters_.encoded[static_cast<size_t>(encoding.kind)];
  fused_->coded_before = fused_->encoded->seconds;
  for (size_t i = 0; i < action.pieces.size(); ++i) {
    const Piece& piece = action.pieces[i];
    const Request& request = pending_.Find(piece.token)->request;
    const auto& kept = fused_->residuals.emplace_back(residuals_->Of(request.name, piece.tensor));
    fused_->pieces[i].part = {piece.begin, request.signature.tensors[piece.tensor].NumElements(),
                              HomeOf(request.name, piece.tensor), kept.get()};
  }
}

// Whether the action ends with the device's work. Failed actions, and those in which a joined rank
// has no tensors, end in their turn.
bool SetExecution::IsLaunched(const Action& action) const {
  return action.type == Action::Type::kExecute && action.common.on_device &&
         std::any_of(action.pieces.begin(), action.pieces.end(),
                     [this](const Piece& piece) { return pending_.Find(piece.token) != nullptr; });
}

// The work was submitted: callers' streams may wait for it, and the next bucket may start.
void SetExecution::OnFrontLaunched() {
  TakeResults(queue_.front(), *fused_);
  for (const Token token : queue_.front().finished) {
    Operation* const operation = pending_.Find(token);
    if (operation == nullptr || !operation->on_device) continue;
    operation->on_device->finished = fused_->finished;
    operation->on_device->launched.store(true);
  }
  if (fused_->by_nccl) ++counters_.nccl_buckets;
  collective_.reset();
  device_.Add({std::move(queue_.front()), std::move(fused_), started_at_});
  queue_.pop_front();
  host_.OnLaunched();
}

Result<bool> SetExecution::EndLaunched(double now) {
  const auto count = device_.CountDone();
  if (!count.ok()) return count.status();
  for (size_t done = *count; done > 0 && !device_.empty(); --done) {
    const DeviceQueue::Launched launched = device_.TakeFront();
    progressed_at_ = now;
    End(launched.action, launched.fused.get(), launched.started_at, now);
  }
  return *count > 0;
}

void SetExecution::EndFront(double now) {
  // Remove the action first, because the following may call back into this set.
  const Action action = std::move(queue_.front());
  queue_.pop_front();
  const std::unique_ptr<FusedOperation> fused = std::move(fused_);
  collective_.reset();
  if (fused) TakeResults(action, *fused);
  End(action, fused.get(), started_at_, now);
}

void SetExecution::End(const Action& action, const FusedOperation* fused, double started_at,
                       double now) {
  ended_sequence_ = action.sequence;
  owner_.OnEnded(action, fused, started_at, now);
}

void SetExecution::TakeResults(const Action& action, FusedOperation& fused) {
  for (size_t i = 0; i < fused.results.size(); ++i) {
    const Piece& piece = action.pieces[i];
    Operation* const operation = pending_.Find(piece.token);
    operation->results.resize(operation->tensors.size());
    operation->results[piece.tensor] = std::move(fused.results[i]);
  }
}

void SetExecution::Abandon(bool has_messages_at_work) {
  abandoned_ = true;
  stamps_.End();
  const bool may_be_at_work = collective_ != nullptr && !fused_->ready.empty();
  // Keep the exchange: other members may still be reading published chunks.
  if (exchange_) exchange_->Withdraw();
  std::unique_ptr<FusedOperation> running = std::move(fused_);
  if (may_be_at_work && device_.HasLane()) {
    device_.End(std::move(running), std::move(collective_), has_messages_at_work);
  } else {
    collective_.reset();
    device_.End(nullptr, nullptr, has_messages_at_work);
  }
  queue_.clear();
}

}  // namespace horoscale
