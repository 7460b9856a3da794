#include "runtime/process_set.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "base/rank_list.h"
#include "core/codec.h"
#include "platform/clock.h"
#include "platform/log.h"
#include "runtime/validate.h"

namespace horoscale {
namespace {

constexpr std::chrono::milliseconds kClosePause(1);

// Whether the time of a bucket is a measure of the network. Not within a host, where small buckets
// would be slower if ranks share cores. Not on a device, where it includes the computation of its
// tensors and the previous bucket. And not for tensors with free first dimensions, which count as
// one row.
bool IsTimed(const Terms& common, const Exchange* exchange) {
  return exchange != nullptr && !common.on_device && !HasFreeFirstDimension(common.kind);
}

// Whether the program is called back when the bucket's operations are done, and does not wait here.
// A program does so for all of its operations, so the first one tells.
bool CallsBack(const Action& action, const PendingOperations& pending) {
  if (action.pieces.empty()) return false;
  const Operation* const operation = pending.Find(action.pieces[0].token);
  return operation != nullptr && operation->callback != nullptr;
}

// The same failure, for one tensor.
Status Concerning(const Status& cause, int process_set_id, const std::string& tensor) {
  FailureDetail detail = cause.detail();
  detail.process_set_id = process_set_id;
  detail.tensor = tensor;
  return {cause.code(), cause.message(), std::move(detail)};
}

void SendToOthers(Transport& transport, ChannelId channel, const std::vector<int>& ranks,
                  const Goodbye& message) {
  const std::vector<std::byte> bytes = Encode(message);
  for (const int rank : ranks) {
    if (rank != transport.rank()) transport.Send(rank, {FrameKind::kPoison, channel}, bytes);
  }
}

}  // namespace

ProcessSet::ProcessSet(SetHost& host, Transport& transport, const Config& config, ChannelId channel,
                       std::vector<int> order, std::shared_ptr<MpiSetCommunicator> mpi)
    : host_(host),
      transport_(transport),
      place_(channel, std::move(order), transport.rank()),
      execution_(*this, host, transport, config, place_, pending_, counters_, std::move(mpi)),
      control_(transport, config, place_, counters_, host, execution_),
      // Posts are disabled with an autotuner, which counts the plan's entries, and with MPI's own
      // operations.
      posts_(transport, config, place_, pending_, control_, counters_,
             !config.autotune && execution_.mpi() == nullptr),
      launches_(
          host.launch_order(), place_, [this] { return execution_.LaneInOrder(); },
          [this](const OperationPtr& operation) { messages_.OnLaunched(operation); }),
      messages_(
          transport, place_, launches_,
          [this](const OperationPtr& operation, const Status& status) {
            if (!operation->message->released) Count(*operation->message, status);
            Finish(operation, status);
          },
          [&host] { host.OnLaunched(); }),
      watch_(host, config, place_, pending_, control_, execution_, posts_, messages_) {}

void ProcessSet::Submit(OperationPtr operation) {
  if (operation->message) {
    if (failure_.ok()) return messages_.Submit(std::move(operation));
    return messages_.ReceiveWhatCame(operation, failure_);
  }
  if (!failure().ok()) return Finish(operation, failure());
  if (Status status = control_.Submit(*operation); !status.ok()) return Finish(operation, status);
  const Request& request = operation->request;
  if (request.name.empty() && request.signature.kind != OpKind::kJoin) {
    operation->index.store(control_.member().last_index());
  }
  pending_.Add(std::move(operation));
}

void ProcessSet::OnFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload) {
  if (!failure_.ok()) return;
  if (kind == FrameKind::kPoison) {
    if (Contains(from_rank)) OnPoison(from_rank, payload);
    return;
  }
  const Status status = TakeFrame(from_rank, kind, payload);
  if (status.ok()) return;
  Poison({status.code(),
          "rank " + std::to_string(from_rank) + " sent an invalid message: " + status.message(),
          {{from_rank}, id(), ""}});
}

Status ProcessSet::TakeFrame(int from_rank, FrameKind kind, std::span<const std::byte> payload) {
  if (kind == FrameKind::kMessage && Contains(from_rank)) {
    return messages_.OnFrame(from_rank, payload);
  }
  if (!departure_.ok()) return Status::Ok();  // a frame of a collective, which has failed
  if (kind == FrameKind::kLaunch) return execution_.OnStamp(from_rank, payload);
  const double now = MonotonicSeconds();
  if (kind == FrameKind::kPost) return posts_.OnFrame(from_rank, payload, now);
  return control_.OnFrame(from_rank, kind, payload, now);
}

bool ProcessSet::Step(double now) {
  if (!failure_.ok()) return FinishFailed(now);
  const auto moved = departure_.ok() ? Advance(now) : StepMessages();
  if (!moved.ok()) {
    Poison(moved.status());
    return true;
  }
  const bool failed = FailAfterLeavers() || (!departure_.ok() && FinishFailed(now));
  return failed || *moved;
}

Result<bool> ProcessSet::Advance(double now) {
  const auto posted = StepPosts(now);
  if (!posted.ok()) return posted;
  const auto planned = control_.Step(now);
  if (!planned.ok()) return planned;
  const auto executed = execution_.Step(now);
  if (!executed.ok()) return executed;
  const auto sent = StepMessages();
  if (!sent.ok()) return sent;
  return *posted || *planned || *executed || *sent;
}

Result<bool> ProcessSet::StepMessages() {
  if (!failure_.ok() || !messages_.Busy()) return false;
  return messages_.Step();
}

Result<bool> ProcessSet::StepPosts(double now) {
  const auto posted = posts_.Post(execution_.Busy(), now);
  if (!posted.ok()) return posted;
  const auto ended = posts_.End();
  if (!ended.ok()) return ended.status();
  if (*ended == kNoToken) return posted;
  Operation* const operation = pending_.Find(*ended);
  operation->planned_at = operation->started_at = now;
  counters_.negotiate_seconds += now - operation->enqueued_at;
  FinishToken(*ended, Status::Ok());
  return true;
}

bool ProcessSet::FailAfterLeavers() {
  const ExecutedUpTo here = executed();
  const auto is_over = [this, &here](const Leaver& leaver) {
    if (!departure_.ok()) return true;  // nothing will be executed any more
    return here.sequence >= leaver.executed.sequence && here.posts >= leaver.executed.posts;
  };
  const auto found = std::find_if(leavers_.begin(), leavers_.end(), is_over);
  if (found == leavers_.end()) return false;
  const Leaver leaver = std::move(*found);
  leavers_.erase(found);
  Lose(leaver);
  return true;
}

void ProcessSet::Lose(const Leaver& leaver) {
  if (!failure_.ok()) return;
  if (!leaver.cleanly) return Fail(leaver.cause);
  if (messages_.HasDeviceTensors()) return Poison(leaver.cause);  // others may have none
  if (departure_.ok()) {
    departure_ = leaver.cause;
    host_.OnMemberLeft(place_, departure_);
    AbandonCollectives();
  }
  messages_.Leave(leaver.rank, leaver.cause);
}

void ProcessSet::OnEnded(const Action& action, const FusedOperation* fused, double started_at,
                         double now) {
  if (fused != nullptr) {
    counters_.execute_seconds += now - started_at;
  }
  const double exposed = host_.OnBucketDone(place_, action, started_at);
  if (fused != nullptr && IsTimed(action.common, execution_.exchange())) {
    const bool between_hosts = !execution_.exchange()->hosts().empty();
    if (between_hosts) counters_.adapted.OnBucket(action, *fused, pending_);
    control_.OnBucket({.bytes = fused->Bytes(),
                       .dtype = action.dtype,
                       .encoding = action.common.encoding,
                       .seconds = now - started_at,
                       .coding_seconds = fused->CodingSeconds(),
                       .exposed_seconds = exposed,
                       .ended_at = now,
                       .calls_back = CallsBack(action, pending_)},
                      between_hosts);
  }
  control_.OnExecuted(action.sequence);

  Status status = action.type == Action::Type::kFail ? action.failure : Status::Ok();
  for (const Token token : action.finished) {
    // The registration may remove this set, with all pending operations.
    const OperationPtr operation = pending_.Take(token);
    if (operation == nullptr) continue;
    if (const double error = counters_.adapted.OnEnded(*operation); error >= 0) {
      control_.OnLost(operation->request.name, operation->encoding, error);
    }
    const OpKind kind = operation->request.signature.kind;
    if (action.type == Action::Type::kAllJoined) {
      if (operation->process_set_id == id()) operation->result = action.last_joined;
    } else if (status.ok() &&
               (kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet)) {
      const auto result = host_.Register(operation->request.signature);
      status = result.status();
      if (result.ok()) operation->result = *result;
    }
    FinishTaken(operation, status);
  }
}

void ProcessSet::Count(const Message& message, const Status& status) {
  ++counters_.operations;
  if (!status.ok()) return;
  if (message.is_send) {
    ++counters_.messages_sent;
    counters_.message_bytes_sent += message.envelope.bytes;
  } else {
    ++counters_.messages_received;
    counters_.messages_viewed += message.number != 0 ? 1 : 0;
    counters_.message_bytes_received += message.envelope.bytes;
  }
  counters_.nccl_messages += message.by_nccl ? 1 : 0;
}

void ProcessSet::FinishToken(Token token, const Status& status) {
  if (const OperationPtr operation = pending_.Take(token)) FinishTaken(operation, status);
}

void ProcessSet::FinishTaken(const OperationPtr& operation, const Status& status) {
  ++counters_.operations;
  const Request& request = operation->request;
  last_.kind = request.signature.kind;
  last_.name = request.name;
  last_.index = operation->index.load();
  Finish(operation, status.ok() ? CheckResults(*operation) : status);
}

void ProcessSet::Finish(const OperationPtr& operation, const Status& status) {
  // The join() of another set concerns this one, but does not fail with it.
  const bool ends_well = status.ok() || operation->process_set_id != id();
  host_.Finish(operation,
               ends_well ? Status::Ok() : Concerning(status, id(), operation->DisplayName()));
}

SetProgress ProcessSet::Progress(double now) const {
  SetProgress progress;
  if (!last_.name.empty() || last_.index != 0) {
    progress.last_operation = DisplayName(last_.name, last_.kind, last_.index);
  }
  if (const Action* const action = execution_.AtWork()) progress.executing = action->display_name;
  progress.pending = pending_.size() + messages_.pending().size();
  const Operation* oldest = nullptr;
  const auto look = [&oldest](const auto& table) {
    for (const auto& [token, operation] : table) {
      if (oldest == nullptr || operation->enqueued_at < oldest->enqueued_at) {
        oldest = operation.get();
      }
    }
  };
  look(pending_);
  look(messages_.pending());
  if (oldest != nullptr) {
    progress.pending_operation = oldest->DisplayName();
    progress.pending_seconds = now - oldest->enqueued_at;
  }
  return progress;
}

void ProcessSet::CheckStalls(double now) {
  if (!failure_.ok()) return;
  const auto end = departure_.ok() ? watch_.Check(now) : watch_.CheckMessages(now);
  if (end) Poison(*end);
}

std::vector<std::string> ProcessSet::DescribeState(double now) const {
  if (failure().ok()) return watch_.Describe(now);
  std::vector<std::string> lines = {"process set " + std::to_string(id()) + " of " +
                                    RankList(ranks()) + " is lost: " + failure().message()};
  if (failure_.ok()) watch_.DescribeMessages(now, lines);
  return lines;
}

void ProcessSet::Fail(const Status& cause) {
  if (!failure_.ok()) return;
  failure_ = cause;
  leavers_.clear();
  host_.OnFailed(place_, failure_);
  if (departure_.ok()) AbandonCollectives();
  messages_.Fail(cause);
  (void)FinishFailed(MonotonicSeconds());
}

void ProcessSet::AbandonCollectives() {
  execution_.Abandon(messages_.UsesLane());
  control_.Abandon();
}

bool ProcessSet::FinishFailed(double now) {
  const bool copied =
      messages_.WaitsForDevice() && messages_.StepFailed(now, execution_.HasLaneEnded());
  if (!execution_.IsOver(now)) return copied;
  const bool moved = copied || execution_.HasLaunched() || !pending_.empty();
  execution_.Forget();
  while (!pending_.empty()) FinishToken(pending_.begin()->first, failure());
  return moved;
}

void ProcessSet::Close(double seconds) {
  const double deadline = MonotonicSeconds() + seconds;
  const auto is_at_work = [this] {
    const bool is_lane =
        execution_.HasLane() && (!execution_.HasLaneEnded() || execution_.HasLaunched());
    return is_lane || messages_.WaitsForDevice();
  };
  while (is_at_work() && MonotonicSeconds() < deadline) {
    if (!FinishFailed(MonotonicSeconds())) std::this_thread::sleep_for(kClosePause);
  }
  (void)FinishFailed(std::numeric_limits<double>::infinity());
}

void ProcessSet::FailAfter(Leaver leaver) {
  if (failure_.ok()) leavers_.push_back(std::move(leaver));
}

void ProcessSet::Poison(const Status& cause) {
  if (!failure_.ok()) return;
  SendPoison(transport_, channel(), ranks(), cause);
  Log(LogLevel::kError, "process set " + std::to_string(id()) + " is lost: " + cause.message());
  Fail(cause);
}

void ProcessSet::Leave() {
  if (!failure_.ok()) return;  // the set has stopped
  Goodbye message;
  message.executed = {executed()};
  message.message = "rank " + std::to_string(place_.rank) + " has removed process set " +
                    std::to_string(id()) + ", because " + departure_.message();
  message.ranks = departure_.detail().ranks;
  SendToOthers(transport_, channel(), ranks(), message);
}

void ProcessSet::SendPoison(Transport& transport, ChannelId channel, const std::vector<int>& ranks,
                            const Status& cause) {
  Goodbye message;
  message.clean = false;
  message.code = static_cast<int>(cause.code());
  message.message = cause.message();
  message.ranks = cause.detail().ranks;
  SendToOthers(transport, channel, ranks, message);
}

void ProcessSet::OnPoison(int from_rank, std::span<const std::byte> payload) {
  const auto message = DecodeGoodbye(payload);
  if (message.ok() && message->clean) return OnLeave(from_rank, *message);
  const std::string reason = message.ok() ? message->message : message.status().message();
  std::vector<int> ranks = message.ok() ? message->ranks : std::vector<int>{};
  if (ranks.empty()) ranks.push_back(from_rank);
  Fail({StatusCode::kRankFailed,
        "rank " + std::to_string(from_rank) + " abandoned process set " + std::to_string(id()) +
            ": " + reason,
        {std::move(ranks), id(), ""}});
}

void ProcessSet::OnLeave(int from_rank, const Goodbye& message) {
  const ExecutedUpTo here = executed();
  const ExecutedUpTo there = message.executed.empty() ? here : message.executed.front();
  const Status cause(StatusCode::kRankFailed, message.message, {message.ranks, id(), ""});
  FailAfter({from_rank, true, there, cause});
}

}  // namespace horoscale
