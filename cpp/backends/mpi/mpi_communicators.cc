#include "backends/mpi/mpi_communicators.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/rank_list.h"

namespace horoscale {
namespace {

constexpr std::chrono::seconds kCloseTimeout(5);

// 0, 1, 2, …: the members in the order of the set.
std::vector<uint32_t> InOrder(size_t size) {
  std::vector<uint32_t> members(size);
  for (size_t i = 0; i < size; ++i) members[i] = static_cast<uint32_t>(i);
  return members;
}

// The index in the set of each rank of a user's communicator.
Result<std::vector<uint32_t>> FindMembers(MpiCommunicator& comm, int self,
                                          std::span<const int> ranks, const Deadline& deadline) {
  const auto all = comm.AllGather(std::as_bytes(std::span(&self, 1)), deadline);
  if (!all.ok()) return all.status();
  std::vector<int> given(all->size() / sizeof(int));
  std::memcpy(given.data(), all->data(), all->size());
  if (!std::is_permutation(given.begin(), given.end(), ranks.begin(), ranks.end())) {
    std::sort(given.begin(), given.end());
    return Status::InvalidArgument("the communicator for a process set of " + RankList(ranks) +
                                   " contains other ranks: " + RankList(given));
  }
  std::vector<uint32_t> members;
  for (const int rank : given) {
    const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
    members.push_back(static_cast<uint32_t>(at - ranks.begin()));
  }
  return members;
}

}  // namespace

Result<MpiCommunicator*> MpiSetCommunicator::Get() const {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  return communicator_.get();
}

void MpiSetCommunicator::Set(std::unique_ptr<MpiCommunicator> communicator,
                             std::vector<uint32_t> members) {
  std::lock_guard lock(mutex_);
  communicator_ = std::move(communicator);
  members_ = std::move(members);
}

Result<std::unique_ptr<MpiCommunicators>> MpiCommunicators::Create(
    std::unique_ptr<MpiCommunicator> parent) {
  auto state = std::make_shared<State>();
  state->parent = std::move(parent);
  auto thread = Thread::Start("hs-mpi-comms", [state] { Run(*state); });
  if (!thread.ok()) return thread.status();
  std::unique_ptr<MpiCommunicators> made(new MpiCommunicators(std::move(state)));
  made->thread_ = std::make_unique<Thread>(thread.TakeValue());
  return made;
}

MpiCommunicators::~MpiCommunicators() {
  std::unique_lock lock(state_->mutex);
  state_->is_closing = true;
  state_->changed.notify_all();
  const bool is_done =
      state_->changed.wait_for(lock, kCloseTimeout, [this] { return state_->is_done; });
  if (is_done) return;
  // A rank has left without creating a communicator that this one waits for in MPI.
  state_->parent->mpi().ExitWithoutFinalize();
  MpiLibrary::Keep(std::move(thread_));
}

std::shared_ptr<MpiSetCommunicator> MpiCommunicators::Make(std::span<const int> ranks) {
  const int self = state_->parent->rank();
  if (ranks.size() < 2 || std::find(ranks.begin(), ranks.end(), self) == ranks.end()) {
    return nullptr;
  }
  auto communicator = std::make_shared<MpiSetCommunicator>();
  std::lock_guard lock(state_->mutex);
  state_->tasks.push_back({communicator, {ranks.begin(), ranks.end()}});
  state_->changed.notify_all();
  return communicator;
}

Result<std::shared_ptr<MpiSetCommunicator>> MpiCommunicators::Duplicate(MpiHandle comm,
                                                                        std::span<const int> ranks,
                                                                        const Deadline& deadline) {
  if (ranks.size() < 2) return std::shared_ptr<MpiSetCommunicator>();
  auto duplicate = MpiCommunicator::Duplicate(state_->parent->mpi(), comm, deadline);
  if (!duplicate.ok()) return duplicate.status();
  auto members = FindMembers(**duplicate, state_->parent->rank(), ranks, deadline);
  if (!members.ok()) return members.status();
  auto communicator = std::make_shared<MpiSetCommunicator>();
  communicator->Set(duplicate.TakeValue(), members.TakeValue());
  Add(*state_, communicator);
  return communicator;
}

void MpiCommunicators::Free(std::shared_ptr<MpiSetCommunicator> communicator) {
  if (communicator == nullptr) return;
  std::lock_guard lock(state_->mutex);
  state_->tasks.push_back({std::move(communicator), {}});
  state_->changed.notify_all();
}

void MpiCommunicators::Run(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return state.is_closing || !state.tasks.empty(); });
    if (state.tasks.empty()) break;
    const Task task = std::move(state.tasks.front());
    state.tasks.pop_front();
    if (task.ranks.empty()) std::erase(state.made, task.communicator);
    lock.unlock();
    if (task.ranks.empty()) {
      task.communicator->Set(nullptr, {});
    } else {
      Make(state, task);
    }
    lock.lock();
  }
  const auto made = std::exchange(state.made, {});
  lock.unlock();
  for (const auto& communicator : made) communicator->Set(nullptr, {});
  lock.lock();
  state.parent.reset();
  state.is_done = true;
  state.changed.notify_all();
}

void MpiCommunicators::Make(State& state, const Task& task) {
  auto made = MpiCommunicator::OfRanks(*state.parent, task.ranks);
  if (made.ok()) {
    task.communicator->Set(made.TakeValue(), InOrder(task.ranks.size()));
    Add(state, task.communicator);
    return;
  }
  std::lock_guard lock(task.communicator->mutex_);
  task.communicator->failure_ = made.status();
}

void MpiCommunicators::Add(State& state, const std::shared_ptr<MpiSetCommunicator>& communicator) {
  std::lock_guard lock(state.mutex);
  state.made.push_back(communicator);
}

}  // namespace horoscale
