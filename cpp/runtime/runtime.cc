#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "base/rank_list.h"
#include "core/codec.h"
#include "platform/clock.h"
#include "platform/deadline.h"
#include "platform/joined_memory.h"
#include "platform/log.h"
#include "platform/state_signal.h"
#include "runtime/validate.h"

namespace horoscale {
namespace {

constexpr double kTickSeconds = 0.5;
constexpr double kCloseSeconds = 1.0;
constexpr double kMetricsSeconds = 1.0;
constexpr double kDrainDeviceSeconds = 30.0;
constexpr double kCloseDeviceSeconds = 5.0;
// A device provides nothing to sleep on: it is polled, first often and then less often.
constexpr double kDevicePauseSeconds = 20e-6;
constexpr double kMaxDevicePauseSeconds = 500e-6;
constexpr std::chrono::microseconds kDrainPause(100);

}  // namespace

Runtime::Runtime(Config config, Topology topology, std::unique_ptr<Transport> transport,
                 Driver driver, std::unique_ptr<MpiCommunicators> mpi)
    : config_(std::move(config)),
      topology_(topology),
      transport_(std::move(transport)),
      mpi_(std::move(mpi)),
      inbox_(topology_.rank),
      timeline_(topology_.rank),
      tuning_log_(config_.autotune_log_path, topology_.rank),
      creations_(topology_.rank, topology_.size, sets_),
      probes_(*transport_),
      wait_graph_(config_.stall_warning_seconds),
      state_requests_(StateRequests()),
      engine_(*this, *transport_) {
  if (config_.autotune && config_.cache_capacity == 0 && topology_.rank == 0) {
    Log(LogLevel::kWarning,
        "AUTOTUNE has no effect with CACHE_CAPACITY=0, because steps are detected by repeated "
        "operations, which are found in the cache");
  }
  std::vector<int> all(static_cast<size_t>(topology_.size));
  for (int rank = 0; rank < topology_.size; ++rank) all[static_cast<size_t>(rank)] = rank;
  CreateNextSet(all);
  if (driver == Driver::kThread) engine_.Start();
}

Runtime::~Runtime() { Shutdown(""); }

// ------------------------------------------------------------------ user threads

Status Runtime::Enqueue(const OperationPtr& operation, bool will_wait) {
  HS_RETURN_IF_ERROR(ValidateRequest(*operation));
  Signature& signature = operation->request.signature;
  if (signature.reduce_op == ReduceOp::kAdasum) {
    signature.adasum_start_level = static_cast<int>(config_.adasum_start_level);
  }
  operation->will_wait = will_wait;
  // A send or release only sends a frame; no large data is transferred.
  const Message* const message = operation->message.get();
  const bool is_short = message != nullptr && operation->on_device == nullptr &&
                        (message->is_send || message->released != nullptr);
  HS_RETURN_IF_ERROR(inbox_.Put(operation));
  if (will_wait) return Status::Ok();
  is_short ? engine_.TurnOrNotify() : engine_.NotifyInput();
  return Status::Ok();
}

Status Runtime::UseCommunicator(std::vector<int> ranks, MpiHandle comm) {
  if (inbox_.IsClosed()) return {StatusCode::kShutdown, "the runtime has been shut down"};
  return mpi_.Use(std::move(ranks), comm, config_.start_timeout_seconds);
}

Status Runtime::Wait(const OperationPtr& operation, double seconds) {
  return WaitUntil(operation, seconds, [&operation] { return operation->done.load(); });
}

Status Runtime::WaitLaunched(const OperationPtr& operation, double seconds) {
  return WaitUntil(operation, seconds, [&operation] {
    return operation->on_device->launched.load() || operation->done.load();
  });
}

Status Runtime::WaitUntil(const OperationPtr& operation, double seconds,
                          const std::function<bool()>& reached) {
  const double deadline =
      seconds < 0 ? std::numeric_limits<double>::infinity() : MonotonicSeconds() + seconds;
  const bool traced = timeline_.enabled();
  const double began = traced ? MonotonicSeconds() : 0;
  operation->waiters.fetch_add(1);
  waiting_time_.Begin();
  const bool is_reached = engine_.WaitFor(reached, deadline);
  waiting_time_.End();
  operation->waiters.fetch_sub(1);
  if (traced) timeline_.OnWaited(*operation, began, MonotonicSeconds());
  if (operation->done.load()) return operation->status;
  if (is_reached) return Status::Ok();
  return {StatusCode::kTimeout,
          operation->DisplayName() + " is not done yet",
          {{}, operation->process_set_id, operation->request.name}};
}

void Runtime::Shutdown(const std::string& reason) {
  if (!inbox_.Close()) return;
  engine_.Stop();  // from here on this thread is the owner
  if (reason.empty()) DrainDevice();
  const std::vector<std::byte> goodbye = Encode(MakeGoodbye(reason, DeliverTheLast(reason)));
  // Peers may still be copying out of this rank's memory: it is unmapped here, not cleared.
  transport_->Close(goodbye, kCloseSeconds);
  (void)TakeInput();
  const Status status(StatusCode::kShutdown, "the runtime was shut down while it was pending");
  for (const OperationPtr& removal : held_removals_) Finish(removal, status);
  held_removals_.clear();
  for (const auto& [call, operation] : std::exchange(creating_, {})) Finish(operation, status);
  // The global set comes last, and joins fail with it: the other sets have released them by then.
  const SetRegistry::Table& sets = sets_.all();
  for (auto it = sets.rbegin(); it != sets.rend(); ++it) it->second->Fail(status);
  const Deadline deadline = Deadline::After(kCloseDeviceSeconds);
  for (auto it = sets.rbegin(); it != sets.rend(); ++it) {
    it->second->Close(deadline.SecondsLeft());
  }
  mpi_.Close();
  PublishMetrics();
  ended_.store(true);
  for (const auto& callback : TakeCallbacks()) callback();
  (void)timeline_.Stop();
}

// Submitted device work is completed, as on the peers: callers' streams may be waiting for it.
void Runtime::DrainDevice() {
  const Deadline deadline = Deadline::After(kDrainDeviceSeconds);
  const auto is_at_work = [this] {
    return std::any_of(sets_.all().begin(), sets_.all().end(),
                       [](const auto& entry) { return entry.second->HasLaunched(); });
  };
  while (is_at_work() && deadline.SecondsLeft() > 0) {
    if (!Step()) std::this_thread::sleep_for(kDrainPause);
  }
}

Status Runtime::StartTimeline(const std::string& path, bool mark_cycles) {
  return timeline_.Start(path, mark_cycles);
}

Status Runtime::StopTimeline() { return timeline_.Stop(); }

std::string Runtime::MetricsJson() {
  // The counters belong to the engine's owner, so it copies them on request, and once more at the
  // end.
  metrics_wanted_.store(true);
  engine_.WaitFor([this] { return !metrics_wanted_.load() || ended_.load(); },
                  MonotonicSeconds() + kMetricsSeconds);
  return metrics_.Json();
}

std::shared_ptr<SetResiduals> Runtime::ResidualsOf(int process_set_id) const {
  std::lock_guard lock(residuals_mutex_);
  const auto found = residuals_.find(process_set_id);
  return found == residuals_.end() ? nullptr : found->second.lock();
}

// ------------------------------------------------------------------ the engine's owner

double Runtime::MaxSleepSeconds() {
  double seconds = std::numeric_limits<double>::infinity();
  const double now = MonotonicSeconds();
  bool waits_for_device = false;
  for (const auto& set : active_) {
    seconds = std::min(seconds, set->MaxSleepSeconds(now));
    waits_for_device |= set->WaitsForDevice();
  }
  if (!waits_for_device) return seconds;
  device_pause_ = std::min(device_pause_ * 2, kMaxDevicePauseSeconds);
  return std::min(seconds, device_pause_);
}

bool Runtime::HasWork() const {
  return inbox_.HasInput() || inbox_.unfinished() > 0 || has_unsent_.load() ||
         metrics_wanted_.load();
}

std::vector<std::function<void()>> Runtime::TakeCallbacks() {
  return std::exchange(callbacks_, {});
}

bool Runtime::Step() {
  bool moved = inbox_.HasInput() && TakeInput();
  moved |= transport_->Poll(*this);
  const double now = MonotonicSeconds();
  // Iterate by index: a step may register sets, and finish operations of others.
  for (size_t i = 0; i < active_.size(); ++i) {
    const std::shared_ptr<ProcessSet> set = active_[i];
    moved |= set->Step(now);
  }
  std::erase_if(active_, [](const auto& set) { return !set->Busy(); });
  const bool holds_reports = std::any_of(active_.begin(), active_.end(),
                                         [](const auto& set) { return set->HoldsReports(); });
  if (!held_removals_.empty()) moved |= ReleaseHeldRemovals();
  moved |= StepCreations();
  has_unsent_.store(transport_->HasUnsent() || holds_reports);
  if (metrics_wanted_.load()) PublishMetrics();
  if (now >= next_tick_) {
    Tick(now);
    moved = true;  // it may have ended something
  }
  if (moved) device_pause_ = kDevicePauseSeconds;
  return moved;
}

bool Runtime::TakeInput() {
  input_ = inbox_.Take(std::move(input_));
  const bool has_input = !input_.empty();
  for (OperationPtr& operation : input_) {
    if (operation->request.signature.kind == OpKind::kRemoveProcessSet) {
      if (operation->abandons) AbandonSet(operation->process_set_id);
      held_removals_.push_back(std::move(operation));
      continue;
    }
    if (operation->new_set != nullptr) {
      StartCreation(operation);
      continue;
    }
    const auto set = sets_.Find(static_cast<uint32_t>(operation->process_set_id));
    if (set == nullptr) {
      Finish(operation, Status::InvalidArgument("the process set has been removed"));
      continue;
    }
    if (operation->message == nullptr) {
      step_times_.OnSubmitted(operation->request.name, operation->enqueued_at);
    }
    Activate(set);
    set->Submit(operation);
    if (operation->request.signature.kind == OpKind::kJoin) SubmitJoin(operation);
  }
  input_.clear();
  return has_input;
}

// Pending operations may wait for members that never call them, so the members are notified.
void Runtime::AbandonSet(int id) {
  const auto set = sets_.Find(static_cast<uint32_t>(id));
  if (set == nullptr || !set->HasPending()) return;
  set->Poison({StatusCode::kShutdown,
               "rank " + std::to_string(topology_.rank) + " abandoned process set " +
                   std::to_string(id) + " with pending operations",
               {{topology_.rank}, id, {}}});
}

// The global set has accepted it. It also applies to the rank's other sets: until all members of a
// set have joined, operations that need this rank fail instead of waiting for it.
void Runtime::SubmitJoin(const OperationPtr& join) {
  join_ = join;
  for (const auto& [id, set] : sets_.all()) JoinSet(set);
}

void Runtime::JoinSet(const std::shared_ptr<ProcessSet>& set) {
  if (join_ == nullptr || join_->done.load()) return;  // refused, or over
  if (set->id() == 0 || !set->failure().ok() || !set->Contains(topology_.rank)) return;
  ++join_->open;
  Activate(set);
  set->Submit(join_);
}

// A set is removed only when nothing is pending on it here. So when every rank has requested it, no
// member reads another member's memory any more.
bool Runtime::ReleaseHeldRemovals() {
  const auto is_held = [this](const OperationPtr& operation) {
    const auto set = sets_.Find(static_cast<uint32_t>(operation->request.signature.target_set));
    return set != nullptr && set->HasPending();
  };
  std::vector<OperationPtr> released;
  std::erase_if(held_removals_, [&](const OperationPtr& operation) {
    if (is_held(operation)) return false;
    released.push_back(operation);
    return true;
  });
  for (const OperationPtr& operation : released) {
    // The global set, or that which its members remove.
    const auto set = sets_.Find(static_cast<uint32_t>(operation->process_set_id));
    if (set == nullptr) {
      Finish(operation, Status::InvalidArgument("the process set has been removed"));
    } else if (set->id() != 0 && !set->failure().ok()) {
      RemoveFailedSet(operation);
    } else {
      Activate(set);
      set->Submit(operation);
    }
  }
  return !released.empty();
}

void Runtime::Activate(const std::shared_ptr<ProcessSet>& set) {
  if (std::find(active_.begin(), active_.end(), set) == active_.end()) active_.push_back(set);
}

void Runtime::Tick(double now) {
  next_tick_ = now + kTickSeconds;
  for (const auto& [id, set] : sets_.all()) set->CheckStalls(now);
  if (const auto circle = wait_graph_.TakeCircle(now)) Log(LogLevel::kWarning, *circle);
  CheckCreations(now);
  transport_->GiveBackIdle(now);
  if (timeline_.enabled()) timeline_.Flush();
  if (const uint32_t requests = StateRequests(); requests != state_requests_) {
    state_requests_ = requests;
    DumpState(now);
  }
}

void Runtime::OnStall(const SetPlace& set, const StallNotice& notice) {
  const ChannelId channel = set.channel;
  if (topology_.rank == 0) {
    wait_graph_.Add(0, channel.process_set, channel.incarnation, notice, MonotonicSeconds());
  } else {
    transport_->Send(0, {FrameKind::kStall, channel}, Encode(notice));
  }
}

void Runtime::DumpState(double now) const {
  std::vector<int> up;
  for (int rank = 0; rank < topology_.size; ++rank) {
    if (rank != topology_.rank && !departures_.lost().contains(rank)) up.push_back(rank);
  }
  LogAnswer(
      "state",
      "rank " + std::to_string(topology_.rank) + " of " + std::to_string(topology_.size) + ": " +
          std::to_string(inbox_.unfinished()) + " operations are not done; " +
          std::to_string(engine_.waiting()) +
          " threads are waiting; ranks not lost: " + RankList(up) +
          (transport_->HasUnsent() ? ", and a peer does not receive the data sent to it" : ""));
  for (const auto& [rank, cause] : departures_.lost()) {
    LogAnswer("state", "lost: " + cause.message());
  }
  for (const auto& [id, set] : sets_.all()) {
    const std::vector<int>& ranks = set->ranks();
    if (!std::binary_search(ranks.begin(), ranks.end(), topology_.rank)) continue;
    for (const std::string& line : set->DescribeState(now)) LogAnswer("state", line);
  }
  for (const auto& [call, operation] : creating_) {
    LogAnswer("state", DescribeCreation(call, *operation, now));
  }
  for (const OperationPtr& removal : held_removals_) {
    LogAnswer("state", "remove_process_set of process set " +
                           std::to_string(removal->request.signature.target_set) +
                           " is waiting for this rank's pending operations on the set");
  }
}

void Runtime::OnFrame(int from_rank, const FrameHeader& header,
                      std::span<const std::byte> payload) {
  if (header.kind == FrameKind::kGoodbye) return OnGoodbye(from_rank, payload);
  if (header.kind == FrameKind::kLoss) return;  // used by transports that spread losses
  if (header.kind == FrameKind::kCreation) return OnCreationFrame(from_rank, payload);
  if (header.kind == FrameKind::kProbe) {
    return probes_.OnFrame(from_rank, header.channel, payload);
  }
  if (header.kind == FrameKind::kStall) {
    if (const auto notice = DecodeStallNotice(payload); notice.ok()) {
      wait_graph_.Add(from_rank, header.channel.process_set, header.channel.incarnation, *notice,
                      MonotonicSeconds());
    }
    return;
  }
  if (const auto set = sets_.Find(header.channel)) {
    Activate(set);
    set->OnFrame(from_rank, header.kind, payload);
  } else if (sets_.IsToCome(header.channel)) {
    early_frames_.Add(from_rank, header, payload);
  }
  // Otherwise it belongs to a set that has been removed.
}

void Runtime::OnGoodbye(int from_rank, std::span<const std::byte> payload) {
  if (auto goodbye = DecodeGoodbye(payload); goodbye.ok()) {
    departures_.OnGoodbye(from_rank, goodbye.TakeValue());
  }
}

void Runtime::OnRankLost(int rank, const Status& reason) {
  Log(LogLevel::kInfo, departures_.OnLost(rank, reason).message());
  const bool only_here = reason.code() == StatusCode::kTimeout;
  if (only_here) unreached_.insert(rank);
  for (const auto& [id, set] : sets_.all()) TellLoss(set, rank);
  creations_.OnLost(rank, departures_.lost().at(rank), only_here);
}

// The rank is lost.
void Runtime::TellLoss(const std::shared_ptr<ProcessSet>& set, int rank) {
  if (!set->Contains(rank)) return;
  Activate(set);
  const ChannelId channel = set->channel();
  const Departures::Verdict verdict =
      departures_.ForSet(rank, channel.process_set, channel.incarnation, set->ranks());
  if (verdict.at_once && unreached_.contains(rank)) {
    set->Poison(verdict.cause);  // the other members may not detect it
  } else if (verdict.at_once) {
    set->Fail(verdict.cause);
  } else {
    set->FailAfter({rank, departures_.LeftCleanly(rank), verdict.executed, verdict.cause});
  }
}

// Delivers data that others need from this rank before they learn that it leaves. Returns the ranks
// for which that failed.
std::vector<int> Runtime::DeliverTheLast(const std::string& reason) {
  const bool in_order = reason.empty() && inbox_.harm().ok();
  return transport_->AwaitLinks(in_order ? config_.silence_seconds : kCloseSeconds);
}

Goodbye Runtime::MakeGoodbye(const std::string& reason, const std::vector<int>& unreached) const {
  std::string why = reason;
  if (why.empty() && !unreached.empty()) {
    why = "it could not deliver its last data to " + RankList(unreached);
    Log(LogLevel::kWarning, "while this rank left the job, " + why);
  }
  Goodbye goodbye = departures_.MakeGoodbye(topology_.rank, why, inbox_.harm());
  // No rank may wait for data that can't be delivered any more.
  if (!unreached.empty()) return goodbye;
  for (const auto& [id, set] : sets_.all()) {
    const ExecutedUpTo executed = set->executed();
    if (executed.sequence > 0 || executed.posts > 0) goodbye.executed.push_back(executed);
  }
  return goodbye;
}

void Runtime::Finish(const OperationPtr& operation, Status status) {
  const bool failed = !status.ok();
  if (failed && IsRemovalOfFailedSet(*operation)) return held_removals_.push_back(operation);
  if (operation->done.load() || (--operation->open > 0 && !failed)) return;
  inbox_.OnFinished(*operation, status);
  operation->status = std::move(status);
  if (timeline_.enabled()) timeline_.OnOperationDone(*operation, MonotonicSeconds());
  if (operation->callback) {
    callbacks_.push_back([operation] { operation->callback(operation->status); });
  }
  operation->done.store(true);
  engine_.NotifyDone();
  if (!failed) return;
  // After a failed join(), sets in which it is still pending would block this rank.
  for (const auto& [id, set] : sets_.all()) {
    if (set->HasPending(operation->token)) set->Poison(operation->status);
  }
  if (operation->status.code() == StatusCode::kRankFailed) AbandonRegistration(*operation);
}

void Runtime::FreeShared(std::byte* memory) {
  // An abandoned operation may continue briefly on a member that has not learned of it yet, and
  // write into this memory, so the memory must not be reused.
  if (!inbox_.HasLostSet()) transport_->FreeShared(memory);
}

Result<std::byte*> Runtime::JoinShared(std::span<const int32_t> ranks,
                                       std::span<const int64_t> offsets, size_t bytes) const {
  std::vector<std::byte*> pieces;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool is_rank = ranks[i] >= 0 && ranks[i] < topology_.size;
    pieces.push_back(is_rank ? transport_->SharedAddress(ranks[i], offsets[i], bytes) : nullptr);
    if (pieces.back() == nullptr) {
      return Status::InvalidArgument("rank " + std::to_string(ranks[i]) + " has no " +
                                     std::to_string(bytes) + " bytes of shared memory at offset " +
                                     std::to_string(offsets[i]) + " that this rank can access");
    }
  }
  return JoinMemory(pieces, bytes);
}

double Runtime::OnBucketDone(const SetPlace& set, const Action& action, double started_at) {
  const double now = MonotonicSeconds();
  const double exposed = step_times_.OnExecuted(started_at, now);
  if (timeline_.enabled()) timeline_.OnBucketDone(set.id(), action, started_at, now);
  return exposed;
}

void Runtime::OnTuned(const SetPlace& set, const TuningRecord& record) {
  tuning_log_.Write(set.id(), record);
  if (record.is_last) LogAnswer("autotune", DescribeVerdict(set.id(), record));
}

void Runtime::PublishMetrics() {
  const double began = MonotonicSeconds();
  std::shared_ptr<Metrics> metrics = metrics_.Next();
  CopyMetrics(sets_.all(), *transport_, began, metrics.get());
  metrics->steps = step_times_.totals();
  metrics->waiting_seconds = waiting_time_.Seconds();
  metrics->cost = metrics_cost_;
  metrics_.Publish(std::move(metrics));
  metrics_wanted_.store(false);
  metrics_cost_ = {metrics_cost_.copies + 1, metrics_cost_.seconds + MonotonicSeconds() - began};
  engine_.NotifyDone();
}

}  // namespace horoscale
