#include "runtime/runtime.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/codec.h"
#include "platform/clock.h"
#include "platform/log.h"
#include "runtime/json.h"
#include "runtime/rank_list.h"
#include "runtime/validate.h"

namespace horoscale {
namespace {

constexpr double kTickSeconds = 0.5;
constexpr double kCloseSeconds = 1.0;
constexpr double kMetricsSeconds = 1.0;
// Frames of sets that this rank has not registered yet: its peers can be ahead by a few calls only.
constexpr size_t kMaxEarlyFrames = 100'000;

Status Left(int rank) {
  return {
      StatusCode::kRankFailed, "rank " + std::to_string(rank) + " left the job", {{rank}, -1, ""}};
}

// What survivors say of a lost rank: the first cause that it knew of.
Status LossCause(int rank, const Status& reason, const Goodbye* goodbye) {
  const std::string who = "rank " + std::to_string(rank);
  if (goodbye == nullptr) {
    return {StatusCode::kRankFailed, who + " failed: " + reason.message(), {{rank}, -1, ""}};
  }
  if (goodbye->clean) return Left(rank);
  const bool victim = !goodbye->ranks.empty() && goodbye->ranks != std::vector<int>{rank};
  if (victim) return {StatusCode::kRankFailed, goodbye->message, {goodbye->ranks, -1, ""}};
  return {StatusCode::kRankFailed, who + " failed: " + goodbye->message, {{rank}, -1, ""}};
}

// How far a rank got in a set before it left.
uint64_t ExecutedBy(const Goodbye& goodbye, const ChannelId& channel) {
  for (const ExecutedUpTo& entry : goodbye.executed) {
    if (ChannelId{entry.process_set, entry.incarnation} == channel) return entry.sequence;
  }
  return 0;
}

}  // namespace

Runtime::Runtime(Config config, Topology topology, std::unique_ptr<Transport> transport)
    : config_(std::move(config)),
      topology_(topology),
      transport_(std::move(transport)),
      timeline_(topology_.rank),
      engine_(*this, *transport_) {
  std::vector<int> all(static_cast<size_t>(topology_.size));
  for (int rank = 0; rank < topology_.size; ++rank) all[static_cast<size_t>(rank)] = rank;
  CreateSet(next_id_++, std::move(all));
  engine_.Start();
}

Runtime::~Runtime() { Shutdown(""); }

// ------------------------------------------------------------------ user threads

Status Runtime::Enqueue(const OperationPtr& operation, bool will_wait) {
  HS_RETURN_IF_ERROR(ValidateRequest(*operation));
  const std::string name = operation->request.name;
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
    if (!view.failure.ok()) {
      FailureDetail detail = view.failure.detail();
      detail.process_set_id = operation->process_set_id;
      detail.tensor = name;
      return {view.failure.code(), view.failure.message(), std::move(detail)};
    }
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

Status Runtime::Wait(const OperationPtr& operation, double seconds) {
  const double deadline =
      seconds < 0 ? std::numeric_limits<double>::infinity() : MonotonicSeconds() + seconds;
  const bool done = engine_.WaitFor([&operation] { return operation->done.load(); }, deadline);
  if (done) return operation->status;
  return {StatusCode::kTimeout,
          operation->request.DisplayName() + " is not done yet",
          {{}, operation->process_set_id, operation->request.name}};
}

void Runtime::Shutdown(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  engine_.Stop();  // from here on this thread is the owner
  const std::vector<std::byte> goodbye = Encode(MakeGoodbye(reason));
  // Peers may still be copying out of this rank's memory: it is unmapped here, not cleared.
  transport_->Close(goodbye, kCloseSeconds);
  (void)TakeInput();
  const Status status(StatusCode::kShutdown, "the runtime was shut down while it was pending");
  for (const OperationPtr& removal : held_removals_) Finish(removal, status);
  held_removals_.clear();
  // The global set last, with which joins fail: the other sets have let go of them by then.
  for (auto it = sets_.rbegin(); it != sets_.rend(); ++it) it->second->Fail(status);
  PublishMetrics();
  ended_.store(true);
  for (const auto& callback : TakeCallbacks()) callback();
  (void)timeline_.Stop();
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
  if (!held_removals_.empty()) moved |= ReleaseHeldRemovals();
  has_unsent_.store(transport_->HasUnsent());
  if (metrics_wanted_.load()) PublishMetrics();
  if (now >= next_tick_) {
    Tick(now);
    moved = true;  // it may have ended something
  }
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
  for (const auto& [id, set] : sets_) {
    if (join->done.load()) return;  // refused
    if (id == 0 || !set->failure().ok() || !set->Contains(topology_.rank)) continue;
    ++join->open;
    Activate(set);
    set->Submit(join);
  }
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
  if (timeline_.enabled()) timeline_.Flush();
}

void Runtime::OnFrame(int from_rank, const FrameHeader& header,
                      std::span<const std::byte> payload) {
  if (header.kind == FrameKind::kGoodbye) return OnGoodbye(from_rank, payload);
  const auto found = sets_.find(header.channel.process_set);
  if (found != sets_.end() && found->second->channel() == header.channel) {
    Activate(found->second);
    found->second->OnFrame(from_rank, header.kind, payload);
  } else if (header.channel.incarnation >= next_incarnation_ &&
             early_frames_.size() < kMaxEarlyFrames) {
    early_frames_.push_back({from_rank, header, {payload.begin(), payload.end()}});
  }
  // Otherwise it belongs to a set that has been removed.
}

void Runtime::OnGoodbye(int from_rank, std::span<const std::byte> payload) {
  if (auto goodbye = DecodeGoodbye(payload); goodbye.ok()) {
    goodbyes_[from_rank] = goodbye.TakeValue();
  }
}

void Runtime::OnRankLost(int rank, const Status& reason) {
  const auto found = goodbyes_.find(rank);
  const Goodbye* goodbye = found == goodbyes_.end() ? nullptr : &found->second;
  const Status cause = LossCause(rank, reason, goodbye);
  lost_.emplace(rank, cause);
  Log(LogLevel::kInfo, cause.message());
  for (const auto& [id, set] : sets_) TellLoss(set, rank);
}

// The rank is in lost_.
void Runtime::TellLoss(const std::shared_ptr<ProcessSet>& set, int rank) {
  if (!set->Contains(rank)) return;
  Activate(set);
  const Status& cause = lost_.at(rank);
  const auto goodbye = goodbyes_.find(rank);
  if (goodbye == goodbyes_.end()) return set->Fail(cause);
  // What it knew of a third rank concerns the sets of that one only.
  const auto& causes = cause.detail().ranks;
  const bool concerned = std::any_of(causes.begin(), causes.end(),
                                     [&set](int culprit) { return set->Contains(culprit); });
  set->FailAfter(ExecutedBy(goodbye->second, set->channel()), concerned ? cause : Left(rank));
}

Goodbye Runtime::MakeGoodbye(const std::string& reason) const {
  Goodbye goodbye;
  for (const auto& [id, set] : sets_) {
    if (set->executed_sequence() == 0) continue;
    goodbye.executed.push_back({id, set->channel().incarnation, set->executed_sequence()});
  }
  // A rank that has lost another one passes on what it knows, however it ends itself: a peer may
  // hear of this end first.
  for (const auto& [rank, cause] : lost_) {
    if (const auto left = goodbyes_.find(rank); left != goodbyes_.end() && left->second.clean) {
      continue;
    }
    goodbye.clean = false;
    goodbye.code = static_cast<int>(StatusCode::kRankFailed);
    goodbye.message = cause.message();
    goodbye.ranks = cause.detail().ranks;
    return goodbye;
  }
  if (reason.empty()) return goodbye;
  goodbye.clean = false;
  goodbye.code = static_cast<int>(StatusCode::kRankFailed);
  goodbye.message = reason;
  goodbye.ranks = {topology_.rank};
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

// ------------------------------------------------------------------ process sets

Result<int64_t> Runtime::Register(const Signature& signature) {
  return signature.kind == OpKind::kAddProcessSet ? AddSet(signature.ranks)
                                                  : RemoveSet(signature.target_set);
}

// All ranks execute registrations in one order, so that ids and incarnations agree without being
// sent.
Result<int64_t> Runtime::AddSet(const std::vector<int>& ranks) {
  for (const auto& [id, set] : sets_) {
    if (set->ranks() == ranks) {
      return Status::InvalidArgument("a process set of " + RankList(ranks) +
                                     " exists already: process set " + std::to_string(id));
    }
  }
  uint32_t id = next_id_;
  if (free_ids_.empty()) {
    ++next_id_;
  } else {
    id = free_ids_.front();
    free_ids_.erase(free_ids_.begin());
  }
  CreateSet(id, ranks);
  return static_cast<int64_t>(id);
}

void Runtime::CreateSet(uint32_t id, std::vector<int> ranks) {
  const ChannelId channel{id, next_incarnation_++};
  ProcessSet::Host& host = *this;
  const auto set = std::make_shared<ProcessSet>(host, *transport_, config_, channel, ranks);
  {
    std::lock_guard lock(mutex_);
    views_[static_cast<int>(id)].ranks = std::move(ranks);
  }
  sets_[id] = set;
  std::vector<EarlyFrame> early;
  std::erase_if(early_frames_, [&](EarlyFrame& frame) {
    if (!(frame.header.channel == channel)) return false;
    early.push_back(std::move(frame));
    return true;
  });
  for (const EarlyFrame& frame : early) OnFrame(frame.from_rank, frame.header, frame.payload);
  for (const auto& [rank, cause] : lost_) TellLoss(set, rank);
}

Result<int64_t> Runtime::RemoveSet(int id) {
  const auto found = sets_.find(static_cast<uint32_t>(id));
  if (id == 0 || found == sets_.end()) {
    return Status::InvalidArgument("process set " + std::to_string(id) + " can't be removed");
  }
  {
    std::lock_guard lock(mutex_);
    views_.erase(id);
  }
  const std::shared_ptr<ProcessSet> set = found->second;
  set->Fail(Status::InvalidArgument("process set " + std::to_string(id) + " was removed"));
  sets_.erase(found);
  free_ids_.push_back(static_cast<uint32_t>(id));
  return int64_t{0};
}

void Runtime::PublishMetrics() {
  JsonObject sets;
  for (const auto& [id, set] : sets_) {
    const SetCounters& counters = set->counters();
    sets.AddJson(std::to_string(id), JsonObject()
                                         .Add("operations", counters.operations)
                                         .Add("bytes", counters.bytes)
                                         .Add("buckets", counters.buckets)
                                         .Add("fused_tensors", counters.fused_tensors)
                                         .Add("cache_hits", counters.cache_hits)
                                         .Add("cache_misses", counters.cache_misses)
                                         .Add("negotiate_seconds", counters.negotiate_seconds)
                                         .Add("execute_seconds", counters.execute_seconds)
                                         .Build());
  }
  const TransportCounters transport = transport_->counters();
  const std::string json = JsonObject()
                               .AddJson("process_sets", sets.Build())
                               .Add("control_frames_sent", transport.control_frames_sent)
                               .Add("control_frames_received", transport.control_frames_received)
                               .Add("control_bytes_sent", transport.control_bytes_sent)
                               .Add("socket_frames_sent", transport.socket_frames_sent)
                               .Add("data_bytes_sent", transport.data_bytes_sent)
                               .Add("doorbells_rung", transport.doorbells_rung)
                               .Build();
  {
    std::lock_guard lock(mutex_);
    metrics_json_ = json;
  }
  metrics_wanted_.store(false);
  engine_.NotifyDone();
}

}  // namespace horoscale
