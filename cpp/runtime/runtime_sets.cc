// What the runtime does with its process sets: registration and removal.
#include <algorithm>
#include <utility>

#include "base/rank_list.h"
#include "platform/deadline.h"
#include "runtime/runtime.h"

namespace horoscale {

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

Status Runtime::UseCommunicator(std::vector<int> ranks, MpiHandle comm) {
  std::shared_ptr<MpiCommunicators> mpi;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return {StatusCode::kShutdown, "the runtime has been shut down"};
    mpi = mpi_;
  }
  if (mpi == nullptr) return {};
  std::sort(ranks.begin(), ranks.end());
  auto made = mpi->Duplicate(comm, ranks, Deadline::After(config_.start_timeout_seconds));
  if (!made.ok()) return made.status();
  std::lock_guard lock(mutex_);
  prepared_[std::move(ranks)] = made.TakeValue();
  return {};
}

std::shared_ptr<MpiSetCommunicator> Runtime::CommunicatorFor(const std::vector<int>& ranks) {
  if (mpi_ == nullptr) return nullptr;
  {
    std::lock_guard lock(mutex_);
    if (auto prepared = prepared_.extract(ranks)) return std::move(prepared.mapped());
  }
  return mpi_->Make(ranks);
}

// Incarnations are given in order and never again.
bool Runtime::IsOver(ChannelId channel) const {
  if (channel.incarnation >= next_incarnation_) return false;
  const auto found = sets_.find(channel.process_set);
  return found == sets_.end() || found->second->channel() != channel;
}

void Runtime::CreateSet(uint32_t id, std::vector<int> ranks) {
  const ChannelId channel{id, next_incarnation_++};
  SetHost& host = *this;
  const auto set = std::make_shared<ProcessSet>(host, *transport_, config_, channel, ranks,
                                                CommunicatorFor(ranks));
  {
    std::lock_guard lock(mutex_);
    views_[static_cast<int>(id)].ranks = std::move(ranks);
  }
  sets_[id] = set;
  const EarlyFrames::Kept early = early_frames_.Take(channel);
  for (const auto& frame : early.frames) OnFrame(frame.from_rank, frame.header, frame.payload);
  if (early.dropped_of) {
    Activate(set);
    set->Poison(Status::Protocol("rank " + std::to_string(*early.dropped_of) + " sent more than " +
                                 std::to_string(EarlyFrames::kMostBytes) +
                                 " bytes for process set " + std::to_string(id) +
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
    const auto target = sets_.find(static_cast<uint32_t>(signature.target_set));
    if (target != sets_.end() && target->first != 0) target->second->Poison(operation.status);
    return;
  }
  if (signature.kind != OpKind::kAddProcessSet) return;
  // Bindings have one registration pending at a time, so that this would have been the next one;
  // and the global set has failed: there will be no other.
  const ChannelId channel{free_ids_.empty() ? next_id_ : free_ids_.front(), next_incarnation_};
  if (std::binary_search(signature.ranks.begin(), signature.ranks.end(), topology_.rank)) {
    ProcessSet::SendPoison(*transport_, channel, signature.ranks, operation.status);
  }
}

Result<int64_t> Runtime::RemoveSet(int id) {
  if (id < 0) return int64_t{0};  // all agree that there is nothing to remove
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
  if (mpi_ != nullptr) mpi_->Free(set->mpi());
  const ChannelId channel = set->channel();
  sets_.erase(found);
  transport_->Forget(channel);
  free_ids_.push_back(static_cast<uint32_t>(id));
  return int64_t{0};
}

}  // namespace horoscale
