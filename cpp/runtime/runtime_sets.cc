// Runtime: registration and removal of process sets.
#include <algorithm>
#include <utility>

#include "base/process_set_ids.h"
#include "base/rank_list.h"
#include "platform/log.h"
#include "runtime/runtime.h"

namespace horoscale {

Result<int64_t> Runtime::Register(const Signature& signature) {
  return signature.kind == OpKind::kAddProcessSet ? AddSet(signature)
                                                  : RemoveSet(signature.target_set);
}

// Sets that their members created are ignored, because all ranks must decide alike.
Result<int64_t> Runtime::AddSet(const Signature& signature) {
  const auto existing = sets_.Find(signature.ranks, SetRegistry::Of::kAllRanks);
  if (existing != nullptr && !signature.distinct) {
    return Status::InvalidArgument("a process set of " + RankList(signature.ranks) +
                                   " already exists: process set " +
                                   std::to_string(existing->id()));
  }
  const auto id = static_cast<int64_t>(sets_.Next().process_set);
  CreateNextSet(signature.ranks);
  return id;
}

std::shared_ptr<ProcessSet> Runtime::CreateSet(ChannelId channel, const std::vector<int>& order,
                                               std::shared_ptr<MpiSetCommunicator> mpi) {
  SetHost& host = *this;
  auto set =
      std::make_shared<ProcessSet>(host, *transport_, config_, channel, order, std::move(mpi));
  inbox_.OnSetAdded(set->id(), set->ranks(), order);
  {
    std::lock_guard lock(residuals_mutex_);
    residuals_[set->id()] = set->residuals();
  }
  sets_.Add(set);
  return set;
}

// Creates the next set of all ranks of the job.
void Runtime::CreateNextSet(const std::vector<int>& order) {
  const ChannelId channel = sets_.Next();
  std::vector<int> ranks = order;
  std::sort(ranks.begin(), ranks.end());
  const auto set = CreateSet(channel, order, mpi_.Make(ranks));
  const EarlyFrames::Kept early = early_frames_.Take(channel);
  for (const auto& frame : early.frames) OnFrame(frame.from_rank, frame.header, frame.payload);
  if (early.dropped_of) {
    Activate(set);
    set->Poison(Status::Protocol("rank " + std::to_string(*early.dropped_of) + " sent more than " +
                                 std::to_string(EarlyFrames::kMostBytes) +
                                 " bytes for process set " + std::to_string(set->id()) +
                                 " before this rank registered it"));
  }
  for (const auto& [rank, cause] : departures_.lost()) TellLoss(set, rank);
  JoinSet(set);
}

// A registration has failed here because a rank was lost, but others may have executed it before.
// The set is poisoned, because its members would wait for this rank.
void Runtime::AbandonRegistration(const Operation& operation) {
  const Signature& signature = operation.request.signature;
  if (signature.kind == OpKind::kRemoveProcessSet) {
    const auto target = sets_.Find(static_cast<uint32_t>(signature.target_set));
    if (target != nullptr && target->id() != 0) target->Poison(operation.status);
    return;
  }
  if (signature.kind != OpKind::kAddProcessSet || operation.new_set != nullptr) return;
  // Bindings have at most one pending registration, so this would have been the next set. As the
  // global set has failed, there will be no other.
  const std::vector<int>& ranks = signature.ranks;
  if (std::find(ranks.begin(), ranks.end(), topology_.rank) != ranks.end()) {
    ProcessSet::SendPoison(*transport_, sets_.Next(), ranks, operation.status);
  }
}

Result<int64_t> Runtime::RemoveSet(int id) {
  if (id < 0) return int64_t{0};  // all agree that there is nothing to remove
  const auto set = sets_.Find(static_cast<uint32_t>(id));
  if (id == 0 || set == nullptr) {
    return Status::InvalidArgument("process set " + std::to_string(id) + " can't be removed");
  }
  inbox_.OnSetRemoved(id);
  set->Fail(Status::InvalidArgument("process set " + std::to_string(id) + " was removed"));
  mpi_.Free(set->mpi());
  sets_.Remove(static_cast<uint32_t>(id));
  {
    std::lock_guard lock(residuals_mutex_);
    residuals_.erase(id);
  }
  transport_->Forget(set->channel());
  return int64_t{0};
}

// Sets that their members created are unknown to other ranks: after a failure, each member removes
// the set alone and notifies the others.
bool Runtime::IsRemovalOfFailedSet(const Operation& operation) const {
  if (operation.process_set_id == 0 || inbox_.IsClosed() ||
      operation.request.signature.kind != OpKind::kRemoveProcessSet) {
    return false;
  }
  const auto set = sets_.Find(static_cast<uint32_t>(operation.process_set_id));
  return set != nullptr && !set->failure().ok();
}

void Runtime::RemoveFailedSet(const OperationPtr& removal) {
  const auto set = sets_.Find(static_cast<uint32_t>(removal->process_set_id));
  if (set != nullptr) set->Leave();
  const auto removed = RemoveSet(removal->process_set_id);
  if (removed.ok()) removal->result = *removed;
  Finish(removal, removed.status());
}

}  // namespace horoscale
