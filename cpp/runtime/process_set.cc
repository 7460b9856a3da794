#include "runtime/process_set.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "backends/mpi/mpi_collectives.h"
#include "backends/native/native.h"
#include "base/rank_list.h"
#include "core/codec.h"
#include "platform/clock.h"
#include "platform/log.h"
#include "runtime/validate.h"

namespace horoscale {
namespace {

// Slots are given by the coordinator, whose own limit counts: members accept what it decides.
constexpr size_t kMemberCacheCapacity = 1'000'000;

// MPI's own operations have to be asked whether they are done: after sleeping for a share of the
// time that they have taken so far, which bounds what the sleep adds to it.
constexpr double kMpiSleepShare = 0.125;
constexpr double kLeastMpiSleepSeconds = 50e-6;
constexpr double kMostMpiSleepSeconds = 1e-3;

// The limit is looked at with each report: the last one before it comes when it is due.
double StallPeriod(const Config& config) {
  const double warning = config.stall_check ? config.stall_warning_seconds : 0;
  const double limit = config.stall_shutdown_seconds;
  if (limit <= 0) return warning;
  return warning > 0 ? limit / std::ceil(limit / warning) : limit;
}

Limits LimitsOf(const Config& config) {
  return {.fusion_threshold_bytes = config.fusion_threshold_bytes,
          .partition_bytes = config.partition_bytes,
          .credit_bytes = config.credit_bytes};
}

CoordinatorOptions OptionsFor(const Config& config, int id, const std::vector<int>& ranks) {
  CoordinatorOptions options;
  options.process_set_id = id;
  options.ranks = ranks;
  options.cache_capacity = static_cast<size_t>(config.cache_capacity);
  options.limits = LimitsOf(config);
  options.priority_scheduling = config.priority_scheduling;
  options.stall_warning_seconds = StallPeriod(config);
  // join() is of the global set.
  options.goes_on_without_joined = id == 0;
  options.average_over_participants = config.average_over_participants;
  return options;
}

uint32_t IndexOf(const std::vector<int>& ranks, int rank) {
  return static_cast<uint32_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

// What an operation brings of its own, at most as much as a request may have.
int64_t BytesOf(const Operation& operation) {
  int64_t bytes = 0;
  for (const TensorMemory& tensor : operation.tensors) {
    int64_t of_tensor = 0;
    if (__builtin_mul_overflow(tensor.rows, tensor.row_bytes, &of_tensor) ||
        __builtin_add_overflow(bytes, of_tensor, &bytes)) {
      return kMaxRequestDataBytes;
    }
  }
  return std::min(bytes, kMaxRequestDataBytes);
}

// Whether what a bucket took shows what the network carries. In a host there is none: where ranks
// share cores it would be small buckets that take longer. On a device it waits for what computes
// its tensors, and for the bucket before it; and of tensors with any number of rows one is counted.
bool ShowsPace(const Terms& common, const Exchange* exchange) {
  return exchange != nullptr && !exchange->hosts().empty() && !common.on_device &&
         !HasFreeFirstDimension(common.kind);
}

// The same failure as it concerns one tensor.
Status Concerning(const Status& cause, int process_set_id, const std::string& tensor) {
  FailureDetail detail = cause.detail();
  detail.process_set_id = process_set_id;
  detail.tensor = tensor;
  return {cause.code(), cause.message(), std::move(detail)};
}

}  // namespace

ProcessSet::ProcessSet(Host& host, Transport& transport, const Config& config, ChannelId channel,
                       std::vector<int> ranks, std::shared_ptr<MpiSetCommunicator> mpi)
    : host_(host),
      transport_(transport),
      config_(config),
      channel_(channel),
      ranks_(std::move(ranks)),
      mpi_(std::move(mpi)),
      self_(IndexOf(ranks_, transport.rank())),
      tree_(static_cast<uint32_t>(ranks_.size()), transport.HostsOf(ranks_)),
      parent_(Contains(transport.rank()) ? ranks_[tree_.parent(self_)] : transport.rank()),
      member_(static_cast<int>(channel.process_set), self_, static_cast<uint32_t>(ranks_.size()),
              kMemberCacheCapacity),
      has_company_(channel.process_set != 0) {
  if (Contains(transport.rank()) && self_ == 0) {
    const CoordinatorOptions options = OptionsFor(config, id(), ranks_);
    coordinator_.emplace(options);
    if (config.autotune && ranks_.size() > 1) tuner_.emplace(options.limits);
    collector_.emplace(ranks_.size());
  } else if (Contains(transport.rank()) && !tree_.children(self_).empty()) {
    aggregator_.emplace(tree_.Group(self_), config.report_patience_seconds);
  }
}

bool ProcessSet::Contains(int rank) const {
  return std::binary_search(ranks_.begin(), ranks_.end(), rank);
}

double ProcessSet::MaxSleepSeconds(double now) const {
  double seconds = std::numeric_limits<double>::infinity();
  if (collective_ != nullptr && is_run_by_mpi_) {
    seconds = std::clamp(kMpiSleepShare * (now - progressed_at_), kLeastMpiSleepSeconds,
                         kMostMpiSleepSeconds);
  }
  if (HoldsReports()) seconds = std::min(seconds, std::max(*aggregator_->Deadline() - now, 0.0));
  return seconds;
}

bool ProcessSet::Busy() const {
  return !pending_.empty() || !queue_.empty() || !launched_.empty() || fail_after_.has_value() ||
         HoldsReports() || (coordinator_ && coordinator_->HasWork());
}

void ProcessSet::Submit(OperationPtr operation) {
  if (!failure_.ok()) return Finish(operation, failure_);
  Request request = operation->request;
  if (coordinator_ && HasFreeFirstDimension(request.signature.kind)) {
    request.own_bytes = BytesOf(*operation);
  }
  if (Status status = member_.Submit(std::move(request), operation->token); !status.ok()) {
    return Finish(operation, status);
  }
  pending_.emplace(operation->token, std::move(operation));
}

void ProcessSet::OnFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload) {
  if (!failure_.ok()) return;
  if (kind == FrameKind::kPoison) {
    if (Contains(from_rank)) OnPoison(from_rank, payload);
    return;
  }
  if (Status status = TakeFrame(from_rank, kind, payload); !status.ok()) {
    Poison({status.code(),
            "rank " + std::to_string(from_rank) + " sent what can't be: " + status.message(),
            {{from_rank}, id(), ""}});
  }
}

Status ProcessSet::TakeFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload) {
  const double now = MonotonicSeconds();
  if (kind == FrameKind::kReport && IsChild(from_rank)) return TakeReport(from_rank, payload, now);
  if (kind == FrameKind::kGroupReport && IsChild(from_rank)) {
    return TakeGroupReport(from_rank, payload, now);
  }
  if (kind == FrameKind::kPlan && !coordinator_ && from_rank == parent_) {
    const auto entry = DecodePlanEntry(payload);
    if (!entry.ok()) return entry.status();
    PassDown(payload);
    return Apply(*entry, now);
  }
  if (kind == FrameKind::kLaunch) return TakeStamp(from_rank, payload);
  return Status::Protocol("a frame that is not its to send");
}

bool ProcessSet::IsChild(int rank) const {
  const bool has_children = coordinator_ || aggregator_;
  return has_children && rank != transport_.rank() && Contains(rank) &&
         tree_.parent(IndexOf(ranks_, rank)) == self_;
}

Status ProcessSet::TakeReport(int from_rank, std::span<const std::byte> payload, double now) {
  auto report = DecodeReport(payload);
  if (!report.ok()) return report.status();
  const uint32_t member = IndexOf(ranks_, from_rank);
  if (coordinator_) return coordinator_->OnReport(member, *report, now);
  return aggregator_->OnReport({{{{member}, report.TakeValue()}}}, now);
}

Status ProcessSet::TakeGroupReport(int from_rank, std::span<const std::byte> payload, double now) {
  const auto report = DecodeGroupReport(payload);
  if (!report.ok()) return report.status();
  const uint32_t child = IndexOf(ranks_, from_rank);
  for (const JointReport& part : report->parts) {
    for (const uint32_t member : part.members) {
      if (tree_.GoesThrough(member, child)) continue;
      return Status::Protocol("a report speaks for members that are not its to speak for");
    }
  }
  return coordinator_ ? coordinator_->OnReport(*report, now) : aggregator_->OnReport(*report, now);
}

bool ProcessSet::Step(double now) {
  if (!failure_.ok()) return FinishFailed(now);
  bool moved = SendReport(now);
  moved |= failure_.ok() && PublishPlan(now);
  moved |= failure_.ok() && Advance(now);
  if (failure_.ok() && fail_after_ && executed_sequence_ >= *fail_after_) {
    Fail(leaving_cause_);
    moved = true;
  }
  return moved;
}

bool ProcessSet::SendReport(double now) {
  auto report = member_.TakeReport();
  if (!report) return PassOnReports(now);
  counters_.cache_hits += report->hits.size() + report->unnamed_hits.size();
  counters_.cache_misses += report->requests.size();
  Status status;
  if (coordinator_) {
    status = coordinator_->OnReport(self_, *report, now);
  } else if (aggregator_) {
    status = aggregator_->OnReport({{{{self_}, std::move(*report)}}}, now);
    PassOnReports(now);
  } else {
    transport_.Send(parent_, {FrameKind::kReport, channel_}, Encode(*report));
  }
  if (!status.ok()) Poison(status);
  return true;
}

bool ProcessSet::PassOnReports(double now) {
  bool moved = false;
  while (aggregator_) {
    const auto report = aggregator_->TakeReport(now);
    if (!report) break;
    transport_.Send(parent_, {FrameKind::kGroupReport, channel_}, Encode(*report));
    moved = true;
  }
  return moved;
}

void ProcessSet::PassDown(std::span<const std::byte> plan_entry) {
  for (const uint32_t child : tree_.children(self_)) {
    transport_.Send(ranks_[child], {FrameKind::kPlan, channel_}, plan_entry);
  }
}

bool ProcessSet::PublishPlan(double now) {
  if (!coordinator_ || !coordinator_->HasWork()) return false;
  const std::vector<PlanEntry> plan = coordinator_->TakePlan(now);
  for (const PlanEntry& entry : plan) {
    if (ranks_.size() > 1) PassDown(Encode(entry));
    if (tuner_) Tune(entry, now);
    if (Status status = Apply(entry, now); !status.ok()) {
      Poison(status);
      break;
    }
  }
  return !plan.empty();
}

// The coordinator alone knows the limits: the plan says all that follows from them.
void ProcessSet::Tune(const PlanEntry& entry, double now) {
  const auto seconds = step_clock_.OnEntry(entry, now);
  if (!seconds || tuner_->finished()) return;
  tuner_->OnStep(*seconds);
  SetLimits();
  for (const Autotuner::Record& record : tuner_->TakeRecords()) host_.OnTuned(*this, record);
}

void ProcessSet::SetLimits() {
  coordinator_->SetLimits(pace_.Of(tuner_ ? tuner_->limits() : LimitsOf(config_)));
}

Status ProcessSet::Apply(const PlanEntry& entry, double now) {
  auto action = member_.Apply(entry);
  if (!action.ok()) return action.status();
  for (const Piece& piece : action->pieces) {
    if (Operation* const operation = Find(piece.token)) CountPlanned(*operation, now);
  }
  ProposeLaunch(*action);
  queue_.push_back(action.TakeValue());
  return Status::Ok();
}

void ProcessSet::CountPlanned(Operation& operation, double now) {
  if (operation.planned_at != 0) return;
  operation.planned_at = now;
  counters_.negotiate_seconds += now - operation.enqueued_at;
}

bool ProcessSet::Advance(double now) {
  bool moved = !launched_.empty() && FinishLaunched(now);
  if (!failure_.ok() || queue_.empty()) return moved;
  if (!collective_) {
    // Actions end in the order of the plan.
    if (!launched_.empty() && !IsLaunched(queue_.front())) return moved;
    if (Status status = Start(queue_.front(), now); !status.ok()) {
      Poison(status);
      return true;
    }
  }
  if (collective_) {
    const auto progress = collective_->Step();
    if (!progress.ok()) {
      Poison(progress.status());
      return true;
    }
    if (*progress == Progress::kIdle) return moved;
    progressed_at_ = now;
    if (*progress != Progress::kDone) return true;
  }
  if (fused_ && fused_->finished != nullptr) {
    OnFrontLaunched();
  } else {
    FinishFront(now);
  }
  return true;
}

Status ProcessSet::Start(const Action& action, double now) {
  started_at_ = progressed_at_ = now;
  for (const Piece& piece : action.pieces) {
    Operation* const operation = Find(piece.token);
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
      return StartBucket(action);
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kBarrier:
    case OpKind::kJoin:
      return Status::Ok();
  }
  return Status::Ok();
}

Status ProcessSet::StartBucket(const Action& action) {
  fused_ = std::make_unique<FusedOperation>();
  const Terms& common = action.common;
  fused_->kind = common.kind;
  fused_->absent = action.absent;
  fused_->reduction = {action.dtype, common.reduce_op, common.prescale, common.postscale,
                       static_cast<int64_t>(action.divisor)};
  if (action.dtype == DataType::kFloat32 || action.dtype == DataType::kFloat64) {
    fused_->wire = common.wire_dtype;
  }
  if (common.kind == OpKind::kBroadcast) fused_->root = IndexOf(ranks_, common.root);
  const auto element_bytes = static_cast<int64_t>(SizeOf(action.dtype));
  const Piece* before = nullptr;
  for (const Piece& piece : action.pieces) {
    FusedPiece run;
    run.continues = before != nullptr && piece.Continues(*before);
    before = &piece;
    run.bytes = piece.count * element_bytes;
    if (const Operation* const operation = Find(piece.token)) {
      const TensorMemory& memory = operation->tensors[piece.tensor];
      const int64_t offset = piece.begin * element_bytes;
      run.in = memory.in == nullptr ? nullptr : memory.in + offset;
      run.out = memory.out == nullptr ? nullptr : memory.out + offset;
      run.rows = memory.rows;
      run.row_bytes = memory.row_bytes;
      run.out_rows = memory.out_rows;
      if (common.kind == OpKind::kAlltoall) fused_->splits = operation->splits;
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

Status ProcessSet::StartCollective(const Action& action) {
  const bool on_device = action.common.on_device;
  is_run_by_mpi_ = mpi_ != nullptr && !on_device && IsServedByMpi(*fused_);
  if (is_run_by_mpi_) {
    ++counters_.mpi_buckets;
    collective_ = StartMpi(mpi_, *fused_);
    return Status::Ok();
  }
  if (!exchange_) {
    auto exchange = transport_.Open(channel_, ranks_);
    if (!exchange.ok()) return exchange.status();
    exchange_ = exchange.TakeValue();
  }
  exchange_->sealed = fused_->sealed;
  if (on_device) return StartOnDevice(action);
  collective_ = StartNative(*exchange_, *fused_);
  return Status::Ok();
}

void ProcessSet::FinishFront(double now) {
  // The action leaves the queue first: what follows may call back into this set.
  const Action action = std::move(queue_.front());
  queue_.pop_front();
  const std::unique_ptr<FusedOperation> fused = std::move(fused_);
  collective_.reset();
  if (fused) TakeResults(action, *fused);
  FinishAction(action, fused.get(), started_at_, now);
}

void ProcessSet::TakeResults(const Action& action, FusedOperation& fused) {
  for (size_t i = 0; i < fused.results.size(); ++i) {
    const Piece& piece = action.pieces[i];
    Operation* const operation = Find(piece.token);
    operation->results.resize(operation->tensors.size());
    operation->results[piece.tensor] = std::move(fused.results[i]);
  }
}

void ProcessSet::FinishAction(const Action& action, FusedOperation* fused, double started_at,
                              double now) {
  executed_sequence_ = action.sequence;
  if (fused != nullptr) {
    counters_.execute_seconds += now - started_at;
    if (coordinator_ && ShowsPace(action.common, exchange_.get()) &&
        pace_.OnExecuted(fused->Bytes(), now - started_at)) {
      SetLimits();
    }
  }
  host_.OnBucketDone(*this, action, started_at);
  if (coordinator_) coordinator_->OnExecuted(action.sequence);

  Status status = action.type == Action::Type::kFail ? action.failure : Status::Ok();
  for (const Token token : action.finished) {
    if (const auto found = pending_.find(token); found != pending_.end()) {
      const OperationPtr operation = found->second;
      const OpKind kind = operation->request.signature.kind;
      if (action.type == Action::Type::kAllJoined) {
        if (operation->process_set_id == id()) operation->result = action.last_joined;
      } else if (status.ok() &&
                 (kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet)) {
        const auto result = host_.Register(operation->request.signature);
        status = result.status();
        if (result.ok()) operation->result = *result;
      }
    }
    FinishToken(token, status);
  }
}

Operation* ProcessSet::Find(Token token) const {
  const auto found = pending_.find(token);
  return found == pending_.end() ? nullptr : found->second.get();
}

void ProcessSet::FinishToken(Token token, const Status& status) {
  const auto found = pending_.find(token);
  if (found == pending_.end()) return;
  const OperationPtr operation = std::move(found->second);
  pending_.erase(found);
  ++counters_.operations;
  Finish(operation, status.ok() ? CheckResults(*operation) : status);
}

void ProcessSet::Finish(const OperationPtr& operation, const Status& status) {
  // The join() of another set concerns this one, but does not fail with it.
  const bool ends_well = status.ok() || operation->process_set_id != id();
  host_.Finish(operation, ends_well ? Status::Ok()
                                    : Concerning(status, id(), operation->request.DisplayName()));
}

void ProcessSet::Fail(const Status& cause) {
  if (!failure_.ok()) return;
  failure_ = cause;
  fail_after_.reset();
  host_.OnFailed(*this);
  EndLane();
  // The exchange stays: other members may still be reading what was published.
  if (exchange_) exchange_->Withdraw();
  collective_.reset();
  fused_.reset();
  queue_.clear();
  coordinator_.reset();
  aggregator_.reset();
  (void)member_.Abandon();
  (void)FinishFailed(MonotonicSeconds());
}

void ProcessSet::FailAfter(uint64_t sequence, const Status& cause) {
  if (!failure_.ok() || (fail_after_ && *fail_after_ <= sequence)) return;
  fail_after_ = sequence;
  leaving_cause_ = cause;
}

void ProcessSet::Poison(const Status& cause) {
  if (!failure_.ok()) return;
  SendPoison(transport_, channel_, ranks_, cause);
  Log(LogLevel::kError, "process set " + std::to_string(id()) + " is lost: " + cause.message());
  Fail(cause);
}

void ProcessSet::SendPoison(Transport& transport, ChannelId channel, const std::vector<int>& ranks,
                            const Status& cause) {
  Goodbye message;
  message.clean = false;
  message.code = static_cast<int>(cause.code());
  message.message = cause.message();
  message.ranks = cause.detail().ranks;
  const std::vector<std::byte> bytes = Encode(message);
  for (const int rank : ranks) {
    if (rank != transport.rank()) transport.Send(rank, {FrameKind::kPoison, channel}, bytes);
  }
}

void ProcessSet::OnPoison(int from_rank, std::span<const std::byte> payload) {
  const auto message = DecodeGoodbye(payload);
  const std::string reason = message.ok() ? message->message : message.status().message();
  std::vector<int> ranks = message.ok() ? message->ranks : std::vector<int>{};
  if (ranks.empty()) ranks.push_back(from_rank);
  Fail({StatusCode::kRankFailed,
        "rank " + std::to_string(from_rank) + " gave up process set " + std::to_string(id()) +
            ": " + reason,
        {std::move(ranks), id(), ""}});
}

}  // namespace horoscale
