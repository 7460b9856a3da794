// What the runtime does with its process sets: registration and removal.
#include <algorithm>
#include <utility>

#include "base/rank_list.h"
#include "runtime/runtime.h"

namespace horoscale {

Result<int64_t> Runtime::Register(const Signature& signature) {
  return signature.kind == OpKind::kAddProcessSet ? AddSet(signature.ranks)
                                                  : RemoveSet(signature.target_set);
}

Result<int64_t> Runtime::AddSet(const std::vector<int>& ranks) {
  if (const auto existing = sets_.Find(ranks)) {
    return Status::InvalidArgument("a process set of " + RankList(ranks) +
                                   " exists already: process set " +
                                   std::to_string(existing->id()));
  }
  const auto id = static_cast<int64_t>(sets_.Next().process_set);
  CreateSet(ranks);
  return id;
}

void Runtime::CreateSet(std::vector<int> ranks) {
  const ChannelId channel = sets_.Next();
  SetHost& host = *this;
  const auto set =
      std::make_shared<ProcessSet>(host, *transport_, config_, channel, ranks, mpi_.Make(ranks));
  inbox_.OnSetAdded(set->id(), std::move(ranks));
  sets_.Add(set);
  const EarlyFrames::Kept early = early_frames_.Take(channel);
  for (const auto& frame : early.frames) OnFrame(frame.from_rank, frame.header, frame.payload);
  if (early.dropped_of) {
    Activate(set);
    set->Poison(Status::Protocol("rank " + std::to_string(*early.dropped_of) + " sent more than " +
                                 std::to_string(EarlyFrames::kMostBytes) +
                                 " bytes for process set " + std::to_string(set->id()) +
                                 " before this rank had registered it"));
  }
  for (const auto& [rank, cause] : departures_.lost()) TellLoss(set, rank);
  JoinSet(set);
}

// A registration has failed here because a rank was lost, and others may have executed it before
// they lost that rank. Its set is given up, so that it can be used nowhere: they would wait for
// this rank.
void Runtime::AbandonRegistration(const Operation& operation) {
  const Signature& signature = operation.request.signature;
  if (signature.kind == OpKind::kRemoveProcessSet) {
    const auto target = sets_.Find(static_cast<uint32_t>(signature.target_set));
    if (target != nullptr && target->id() != 0) target->Poison(operation.status);
    return;
  }
  if (signature.kind != OpKind::kAddProcessSet) return;
  // Bindings have one registration pending at a time, so that this would have been the next one;
  // and the global set has failed: there will be no other.
  if (std::binary_search(signature.ranks.begin(), signature.ranks.end(), topology_.rank)) {
    ProcessSet::SendPoison(*transport_, sets_.Next(), signature.ranks, operation.status);
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
  transport_->Forget(set->channel());
  return int64_t{0};
}

}  // namespace horoscale
