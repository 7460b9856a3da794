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
#include "platform/log.h"
#include "platform/state_signal.h"
#include "runtime/metrics.h"
#include "runtime/validate.h"

namespace horoscale {
namespace {

constexpr double kTickSeconds = 0.5;
constexpr double kCloseSeconds = 1.0;
constexpr double kMetricsSeconds = 1.0;
constexpr double kDrainDeviceSeconds = 30.0;
constexpr double kCloseDeviceSeconds = 5.0;
// A device gives nothing to sleep on: it is looked at, first soon and then less often.
constexpr double kDevicePauseSeconds = 20e-6;
constexpr double kMaxDevicePauseSeconds = 500e-6;
constexpr std::chrono::microseconds kDrainPause(100);

// What a rank sent before it left can be received afterwards.
bool MayHaveCome(const Operation& operation, const Status& failure) {
  return operation.message && !operation.message->is_send &&
         failure.code() == StatusCode::kRankFailed;
}

}  // namespace

Runtime::Runtime(Config config, Topology topology, std::unique_ptr<Transport> transport,
                 Driver driver, std::unique_ptr<MpiCommunicators> mpi)
    : config_(std::move(config)),
      topology_(topology),
      transport_(std::move(transport)),
      mpi_(std::move(mpi)),
      timeline_(topology_.rank),
      tuning_log_(config_.autotune_log_path, topology_.rank),
      wait_graph_(config_.stall_warning_seconds),
      state_requests_(StateRequests()),
      engine_(*this, *transport_) {
  if (config_.autotune && config_.cache_capacity == 0 && topology_.rank == 0) {
    Log(LogLevel::kWarning,
        "AUTOTUNE has no effect with CACHE_CAPACITY=0: steps are counted by operations that come "
        "again, which the cache knows");
  }
  std::vector<int> all(static_cast<size_t>(topology_.size));
  for (int rank = 0; rank < topology_.size; ++rank) all[static_cast<size_t>(rank)] = rank;
  CreateSet(next_id_++, std::move(all));
  if (driver == Driver::kThread) engine_.Start();
}

Runtime::~Runtime() { Shutdown(""); }

// ------------------------------------------------------------------ user threads

Status Runtime::Enqueue(const OperationPtr& operation, bool will_wait) {
  HS_RETURN_IF_ERROR(ValidateRequest(*operation));
  const std::string& name = operation->request.name;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return {StatusCode::kShutdown, "the runtime has been shut down"};
    const auto found = views_.find(operation->process_set_id);
    if (found == views_.end()) {
      return Status::InvalidArgument("there is no process set " +
                                     std::to_string(operation->process_set_id));
    }
    SetView& view = found->second;
    HS_RETURN_IF_ERROR(ValidateMembership(*operation, view.ranks, topology_.rank));
    if (!view.failure.ok() && !MayHaveCome(*operation, view.failure)) {
      if (harm_.ok() && view.failure.code() == StatusCode::kRankFailed) harm_ = view.failure;
      FailureDetail detail = view.failure.detail();
      detail.process_set_id = operation->process_set_id;
      detail.tensor = operation->message ? operation->DisplayName() : name;
      return {view.failure.code(), view.failure.message(), std::move(detail)};
    }
    if (operation->on_device) HS_RETURN_IF_ERROR(BindDevice(*operation, view));
    if (!name.empty() && !view.pending_names.insert(name).second) {
      return {StatusCode::kDuplicateName,
              "an operation named \"" + name + "\" is pending on process set " +
                  std::to_string(operation->process_set_id) +
                  "; give each operation its own name, or wait for the first one",
              {{}, operation->process_set_id, name}};
    }
    operation->token = next_token_++;
    operation->enqueued_at = MonotonicSeconds();
    unfinished_.fetch_add(1);
    input_.push_back(operation);
    has_input_.store(true);
  }
  if (!will_wait) engine_.NotifyInput();
  return Status::Ok();
}

// The communicator of a set belongs to one device of each rank.
Status Runtime::BindDevice(const Operation& operation, SetView& view) {
  const CudaDevice* const device = operation.on_device->device;
  if (view.device == nullptr) view.device = device;
  if (view.device == device) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "the tensors are on CUDA device " + std::to_string(device->ordinal()) +
              ", and process set " + std::to_string(operation.process_set_id) +
              " has used device " + std::to_string(view.device->ordinal()) +
              " on this rank: a process set uses one device of each rank",
          {{}, operation.process_set_id, operation.request.name}};
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
  const bool is_reached = engine_.WaitFor(reached, deadline);
  operation->waiters.fetch_sub(1);
  if (traced) timeline_.OnWaited(*operation, began, MonotonicSeconds());
  if (operation->done.load()) return operation->status;
  if (is_reached) return Status::Ok();
  return {StatusCode::kTimeout,
          operation->DisplayName() + " is not done yet",
          {{}, operation->process_set_id, operation->request.name}};
}

void Runtime::Shutdown(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  engine_.Stop();  // from here on this thread is the owner
  if (reason.empty()) DrainDevice();
  const std::vector<std::byte> goodbye = Encode(MakeGoodbye(reason, DeliverTheLast(reason)));
  // Peers may still be copying out of this rank's memory: it is unmapped here, not cleared.
  transport_->Close(goodbye, kCloseSeconds);
  (void)TakeInput();
  const Status status(StatusCode::kShutdown, "the runtime was shut down while it was pending");
  for (const OperationPtr& removal : held_removals_) Finish(removal, status);
  held_removals_.clear();
  // The global set last, with which joins fail: the other sets have let go of them by then.
  for (auto it = sets_.rbegin(); it != sets_.rend(); ++it) it->second->Fail(status);
  const Deadline deadline = Deadline::After(kCloseDeviceSeconds);
  for (auto it = sets_.rbegin(); it != sets_.rend(); ++it) {
    it->second->Close(deadline.SecondsLeft());
  }
  std::shared_ptr<MpiCommunicators> mpi;
  {
    std::lock_guard lock(mutex_);
    mpi.swap(mpi_);
    prepared_.clear();
  }
  mpi.reset();
  PublishMetrics();
  ended_.store(true);
  for (const auto& callback : TakeCallbacks()) callback();
  (void)timeline_.Stop();
}

// What the device has been given is executed, as its peers' parts are: callers may have let their
// streams wait for it, and asked for nothing since.
void Runtime::DrainDevice() {
  const Deadline deadline = Deadline::After(kDrainDeviceSeconds);
  const auto is_at_work = [this] {
    return std::any_of(sets_.begin(), sets_.end(),
                       [](const auto& entry) { return entry.second->HasLaunched(); });
  };
  while (is_at_work() && deadline.SecondsLeft() > 0) {
    if (!Step()) std::this_thread::sleep_for(kDrainPause);
  }
}

std::vector<int> Runtime::ProcessSetIds() const {
  std::lock_guard lock(mutex_);
  std::vector<int> ids;
  for (const auto& [id, view] : views_) ids.push_back(id);
  return ids;
}

std::optional<std::vector<int>> Runtime::ProcessSetRanks(int id) const {
  std::lock_guard lock(mutex_);
  const auto found = views_.find(id);
  if (found == views_.end()) return std::nullopt;
  return found->second.ranks;
}

Status Runtime::StartTimeline(const std::string& path, bool mark_cycles) {
  return timeline_.Start(path, mark_cycles);
}

Status Runtime::StopTimeline() { return timeline_.Stop(); }

std::string Runtime::MetricsJson() {
  // The counters belong to the engine's owner, so it writes them down when it is asked to, and once
  // more at the end.
  metrics_wanted_.store(true);
  engine_.WaitFor([this] { return !metrics_wanted_.load() || ended_.load(); },
                  MonotonicSeconds() + kMetricsSeconds);
  std::lock_guard lock(mutex_);
  return metrics_json_;
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
  return has_input_.load() || unfinished_.load() > 0 || has_unsent_.load() ||
         metrics_wanted_.load();
}

std::vector<std::function<void()>> Runtime::TakeCallbacks() {
  return std::exchange(callbacks_, {});
}

bool Runtime::Step() {
  bool moved = has_input_.load() && TakeInput();
  moved |= transport_->Poll(*this);
  const double now = MonotonicSeconds();
  // By index: a step may register sets, and finish operations of others.
  for (size_t i = 0; i < active_.size(); ++i) {
    const std::shared_ptr<ProcessSet> set = active_[i];
    moved |= set->Step(now);
  }
  std::erase_if(active_, [](const auto& set) { return !set->Busy(); });
  const bool holds_reports = std::any_of(active_.begin(), active_.end(),
                                         [](const auto& set) { return set->HoldsReports(); });
  if (!held_removals_.empty()) moved |= ReleaseHeldRemovals();
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
  std::vector<OperationPtr> input;
  {
    std::lock_guard lock(mutex_);
    input.swap(input_);
    has_input_.store(false);
  }
  for (OperationPtr& operation : input) {
    if (operation->request.signature.kind == OpKind::kRemoveProcessSet) {
      held_removals_.push_back(std::move(operation));
      continue;
    }
    const auto found = sets_.find(static_cast<uint32_t>(operation->process_set_id));
    if (found == sets_.end()) {
      Finish(operation, Status::InvalidArgument("the process set has been removed"));
      continue;
    }
    Activate(found->second);
    found->second->Submit(operation);
    if (operation->request.signature.kind == OpKind::kJoin) SubmitJoin(operation);
  }
  return !input.empty();
}

// The global set has taken it. It concerns the rank's other sets too: until all of a set's members
// have joined, what needs this rank there is an error instead of waiting for it.
void Runtime::SubmitJoin(const OperationPtr& join) {
  join_ = join;
  for (const auto& [id, set] : sets_) JoinSet(set);
}

void Runtime::JoinSet(const std::shared_ptr<ProcessSet>& set) {
  if (join_ == nullptr || join_->done.load()) return;  // refused, or over
  if (set->id() == 0 || !set->failure().ok() || !set->Contains(topology_.rank)) return;
  ++join_->open;
  Activate(set);
  set->Submit(join_);
}

// A set is removed only when nothing is pending on it here; so when every rank has asked for it, no
// member reads another one's memory any more.
bool Runtime::ReleaseHeldRemovals() {
  bool moved = false;
  std::erase_if(held_removals_, [&](const OperationPtr& operation) {
    const auto target = static_cast<uint32_t>(operation->request.signature.target_set);
    const auto found = sets_.find(target);
    if (found != sets_.end() && found->second->HasPending()) return false;
    const auto& global = sets_.at(0);
    Activate(global);
    global->Submit(operation);
    return moved = true;
  });
  return moved;
}

void Runtime::Activate(const std::shared_ptr<ProcessSet>& set) {
  if (std::find(active_.begin(), active_.end(), set) == active_.end()) active_.push_back(set);
}

void Runtime::Tick(double now) {
  next_tick_ = now + kTickSeconds;
  for (const auto& [id, set] : sets_) set->CheckStalls(now);
  if (const auto circle = wait_graph_.TakeCircle(now)) Log(LogLevel::kWarning, *circle);
  if (timeline_.enabled()) timeline_.Flush();
  if (const uint32_t requests = StateRequests(); requests != state_requests_) {
    state_requests_ = requests;
    DumpState(now);
  }
}

void Runtime::OnStall(const ProcessSet& set, const StallNotice& notice) {
  const ChannelId channel = set.channel();
  if (topology_.rank == 0) {
    wait_graph_.Add(0, channel.process_set, channel.incarnation, notice, MonotonicSeconds());
  } else {
    transport_->Send(0, {FrameKind::kStall, channel}, Encode(notice));
  }
}

void Runtime::Probe(const ProcessSet& set) {
  const std::byte ask{0};
  for (const int rank : set.ranks()) {
    if (rank == topology_.rank || departures_.lost().contains(rank)) continue;
    silent_.insert(rank);
    transport_->Send(rank, {FrameKind::kProbe, set.channel()}, {&ask, 1});
  }
}

void Runtime::OnProbe(int from_rank, ChannelId channel, std::span<const std::byte> payload) {
  const std::byte answer{1};
  if (payload.size() != 1) return;
  if (payload[0] == answer) {
    silent_.erase(from_rank);
  } else {
    transport_->Send(from_rank, {FrameKind::kProbe, channel}, {&answer, 1});
  }
}

std::vector<int> Runtime::Silent(const ProcessSet& set) const {
  std::vector<int> silent;
  for (const int rank : set.ranks()) {
    if (silent_.contains(rank)) silent.push_back(rank);
  }
  return silent;
}

void Runtime::DumpState(double now) const {
  std::vector<int> up;
  for (int rank = 0; rank < topology_.size; ++rank) {
    if (rank != topology_.rank && !departures_.lost().contains(rank)) up.push_back(rank);
  }
  LogAnswer("state",
            "rank " + std::to_string(topology_.rank) + " of " + std::to_string(topology_.size) +
                ": " + std::to_string(unfinished_.load()) + " operations are not done; " +
                std::to_string(engine_.waiting()) + " threads wait; not lost: " + RankList(up) +
                (transport_->HasUnsent() ? ", and a peer does not take what is sent to it" : ""));
  for (const auto& [rank, cause] : departures_.lost()) {
    LogAnswer("state", "lost: " + cause.message());
  }
  for (const auto& [id, set] : sets_) {
    const std::vector<int>& ranks = set->ranks();
    if (!std::binary_search(ranks.begin(), ranks.end(), topology_.rank)) continue;
    for (const std::string& line : set->DescribeState(now)) LogAnswer("state", line);
  }
  for (const OperationPtr& removal : held_removals_) {
    LogAnswer("state", "remove_process_set of process set " +
                           std::to_string(removal->request.signature.target_set) +
                           " waits for what is pending there on this rank");
  }
}

void Runtime::OnFrame(int from_rank, const FrameHeader& header,
                      std::span<const std::byte> payload) {
  if (header.kind == FrameKind::kGoodbye) return OnGoodbye(from_rank, payload);
  if (header.kind == FrameKind::kLoss) return;  // the transports' own, where they spread losses
  if (header.kind == FrameKind::kProbe) return OnProbe(from_rank, header.channel, payload);
  if (header.kind == FrameKind::kStall) {
    if (const auto notice = DecodeStallNotice(payload); notice.ok()) {
      wait_graph_.Add(from_rank, header.channel.process_set, header.channel.incarnation, *notice,
                      MonotonicSeconds());
    }
    return;
  }
  const auto found = sets_.find(header.channel.process_set);
  if (found != sets_.end() && found->second->channel() == header.channel) {
    Activate(found->second);
    found->second->OnFrame(from_rank, header.kind, payload);
  } else if (header.channel.incarnation >= next_incarnation_) {
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
  if (reason.code() == StatusCode::kTimeout) unreached_.insert(rank);
  for (const auto& [id, set] : sets_) TellLoss(set, rank);
}

// The rank is lost.
void Runtime::TellLoss(const std::shared_ptr<ProcessSet>& set, int rank) {
  if (!set->Contains(rank)) return;
  Activate(set);
  const ChannelId channel = set->channel();
  const Departures::Verdict verdict =
      departures_.ForSet(rank, channel.process_set, channel.incarnation, set->ranks());
  if (verdict.at_once && unreached_.contains(rank)) {
    set->Poison(verdict.cause);  // the other members may see nothing of it
  } else if (verdict.at_once) {
    set->Fail(verdict.cause);
  } else {
    set->FailAfter(verdict.after_sequence, verdict.cause);
  }
}

// What others need of this rank arrives before they hear that it leaves. The ranks for which that
// was in vain.
std::vector<int> Runtime::DeliverTheLast(const std::string& reason) {
  bool in_order = reason.empty();
  {
    std::lock_guard lock(mutex_);
    in_order = in_order && harm_.ok();
  }
  return transport_->AwaitLinks(in_order ? config_.silence_seconds : kCloseSeconds);
}

Goodbye Runtime::MakeGoodbye(const std::string& reason, const std::vector<int>& unreached) const {
  Status harm;
  {
    std::lock_guard lock(mutex_);
    harm = harm_;
  }
  std::string why = reason;
  if (why.empty() && !unreached.empty()) {
    why = "it could not deliver its last data to " + RankList(unreached);
    Log(LogLevel::kWarning, "while this rank left, " + why);
  }
  Goodbye goodbye = departures_.MakeGoodbye(topology_.rank, why, harm);
  // Nobody may wait for what was executed here and can't come any more.
  if (!unreached.empty()) return goodbye;
  for (const auto& [id, set] : sets_) {
    if (set->executed_sequence() == 0) continue;
    goodbye.executed.push_back({id, set->channel().incarnation, set->executed_sequence()});
  }
  return goodbye;
}

void Runtime::Finish(const OperationPtr& operation, Status status) {
  const bool failed = !status.ok();
  if (operation->done.load() || (--operation->open > 0 && !failed)) return;
  {
    std::lock_guard lock(mutex_);
    if (const auto view = views_.find(operation->process_set_id); view != views_.end()) {
      view->second.pending_names.erase(operation->request.name);
    }
    if (harm_.ok() && status.code() == StatusCode::kRankFailed) harm_ = status;
  }
  operation->status = std::move(status);
  if (timeline_.enabled()) timeline_.OnOperationDone(*operation, MonotonicSeconds());
  if (operation->callback) {
    callbacks_.push_back([operation] { operation->callback(operation->status); });
  }
  unfinished_.fetch_sub(1);
  operation->done.store(true);
  engine_.NotifyDone();
  if (!failed) return;
  // A join() that failed: the sets where it is pending still would not let this rank go on.
  for (const auto& [id, set] : sets_) {
    if (set->HasPending(operation->token)) set->Poison(operation->status);
  }
  if (operation->status.code() == StatusCode::kRankFailed) AbandonRegistration(*operation);
}

void Runtime::OnFailed(const ProcessSet& set) {
  std::lock_guard lock(mutex_);
  const auto view = views_.find(set.id());
  if (view == views_.end()) return;  // it is being removed
  view->second.failure = set.failure();
  set_lost_ = true;
}

void Runtime::FreeShared(std::byte* memory) {
  {
    // An operation that was abandoned here may go on for a moment on a member that doesn't know
    // yet, and write into this memory: it must not belong to anybody else by then.
    std::lock_guard lock(mutex_);
    if (set_lost_) return;
  }
  transport_->FreeShared(memory);
}

void Runtime::OnBucketDone(const ProcessSet& set, const Action& action, double started_at) {
  if (timeline_.enabled()) {
    timeline_.OnBucketDone(set.id(), action, started_at, MonotonicSeconds());
  }
}

void Runtime::OnTuned(const ProcessSet& set, const Autotuner::Record& record) {
  tuning_log_.Write(set.id(), record);
  if (record.is_last) LogAnswer("autotune", DescribeVerdict(set.id(), record));
}

void Runtime::PublishMetrics() {
  const std::string json = MetricsOf(sets_, transport_->counters());
  {
    std::lock_guard lock(mutex_);
    metrics_json_ = json;
  }
  metrics_wanted_.store(false);
  engine_.NotifyDone();
}

}  // namespace horoscale
