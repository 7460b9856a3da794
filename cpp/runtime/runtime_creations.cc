// Runtime: process sets that their members create (core/set_creations.h).
#include <algorithm>
#include <utility>

#include "base/process_set_ids.h"
#include "base/rank_list.h"
#include "platform/log.h"
#include "runtime/runtime.h"

namespace horoscale {

ChannelId Runtime::ChannelOf(int leader, uint32_t number) const {
  return {static_cast<uint32_t>(IdByMembers(leader, number, topology_.size)),
          kIncarnationByMembers | number};
}

void Runtime::StartCreation(const OperationPtr& operation) {
  const auto call = creations_.Call(*operation->new_set);
  if (!call.ok()) return Finish(operation, call.status());
  creating_[*call] = operation;
}

void Runtime::OnCreationFrame(int from_rank, std::span<const std::byte> payload) {
  const auto frame = DecodeSetCreationFrame(payload);
  const Status status = frame.ok() ? creations_.OnFrame(from_rank, *frame) : frame.status();
  if (status.ok()) return;
  Log(LogLevel::kError,
      "rank " + std::to_string(from_rank) + " sent an invalid message: " + status.message());
}

// Called at the end of the engine's turn, because sets may fail while they are in use.
bool Runtime::StepCreations() {
  std::vector<SetCreations::Step> steps = creations_.TakeSteps();
  for (SetCreations::Step& step : steps) TakeCreationStep(step);
  return !steps.empty();
}

void Runtime::TakeCreationStep(SetCreations::Step& step) {
  using Kind = SetCreations::Step::Kind;
  const ChannelId channel = ChannelOf(step.rank, step.number);
  switch (step.kind) {
    case Kind::kSend:
      transport_->Send(step.rank, {FrameKind::kCreation, {}}, Encode(step.frame));
      return;
    case Kind::kRegister:
      // Without a communicator for MPI's own collectives, which all ranks would have to create.
      (void)CreateSet(channel, step.set.ranks, nullptr);
      return;
    case Kind::kDiscard:
      if (const auto set = sets_.Find(channel)) {
        set->Poison(step.cause);  // if it has begun elsewhere
        (void)RemoveSet(set->id());
      }
      return;
    case Kind::kBegun:
      if (auto begun = creating_.extract(step.call)) {
        const auto set = sets_.Find(channel);
        JoinSet(set);
        begun.mapped()->result = set->id();
        Finish(begun.mapped(), Status::Ok());
      }
      return;
    case Kind::kFailed:
      if (auto failed = creating_.extract(step.call)) {
        const Operation& operation = *failed.mapped();
        FailureDetail detail = step.cause.detail();
        detail.tensor = operation.DisplayName();
        detail.process_set_id = 0;
        Finish(failed.mapped(), {step.cause.code(), step.cause.message(), std::move(detail)});
      }
      return;
  }
}

void Runtime::OnFailed(const SetPlace& set, const Status& cause) {
  inbox_.OnSetFailed(set.id(), cause);
  AbandonCreations(set, cause);
}

void Runtime::OnMemberLeft(const SetPlace& set, const Status& cause) {
  inbox_.OnMemberLeft(set.id(), cause);
  AbandonCreations(set, cause);
}

void Runtime::AbandonCreations(const SetPlace& set, const Status& cause) {
  if (IsMadeByMembers(set.id())) {
    const uint32_t number = set.channel.incarnation & ~kIncarnationByMembers;
    creations_.OnSetFailed(set.coordinator(), number, cause);
  }
}

std::string Runtime::DescribeCreation(uint64_t call, const Operation& operation, double now) const {
  const std::vector<int> missed = creations_.MissedBy(call);
  const bool leads = operation.new_set->LowestRank() == topology_.rank;
  return operation.DisplayName() + " has waited for " +
         std::to_string(static_cast<int64_t>(now - operation.enqueued_at)) + " s for " +
         RankList(missed) +
         (leads ? "" : ", which has not called it or is waiting for other members");
}

// Reports calls that not all members have made.
void Runtime::CheckCreations(double now) {
  const double limit = config_.stall_shutdown_seconds;
  const double period = config_.stall_check ? config_.stall_warning_seconds : 0;
  for (const auto& [call, operation] : creating_) {
    const double waited = now - operation->enqueued_at;
    if (limit > 0 && waited >= limit) {
      creations_.GiveUp(call, {StatusCode::kRankFailed,
                               DescribeCreation(call, *operation, now),
                               {creations_.MissedBy(call), -1, ""}});
    } else if (period > 0 &&
               now - std::max(operation->enqueued_at, operation->blocked_told_at) >= period) {
      operation->blocked_told_at = now;
      Log(LogLevel::kWarning, DescribeCreation(call, *operation, now));
    }
  }
}

}  // namespace horoscale
