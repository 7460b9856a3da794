#include "backends/mpi/mpi_communicators.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace horoscale {
namespace {

constexpr std::chrono::seconds kCloseTimeout(5);

}  // namespace

Result<const MpiCommunicator*> MpiSetCommunicator::Get() const {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  return static_cast<const MpiCommunicator*>(communicator_.get());
}

void MpiSetCommunicator::Abandon() {
  std::lock_guard lock(mutex_);
  abandoned_ = true;
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
  lock.unlock();
  if (is_done) return;
  // A rank has gone without making a communicator that this one waits for in MPI.
  state_->parent->mpi().ExitWithoutFinalize();
  (void)thread_.release();
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
    lock.unlock();
    Execute(state, task);
    lock.lock();
  }
  for (const auto& communicator : state.made) Release(*communicator);
  state.made.clear();
  state.is_done = true;
  state.changed.notify_all();
}

void MpiCommunicators::Execute(State& state, const Task& task) {
  if (task.ranks.empty()) {
    Release(*task.communicator);
    std::erase(state.made, task.communicator);
    return;
  }
  auto made = MpiCommunicator::OfRanks(*state.parent, task.ranks);
  std::lock_guard lock(task.communicator->mutex_);
  if (!made.ok()) {
    task.communicator->failure_ = made.status();
    return;
  }
  task.communicator->communicator_ = made.TakeValue();
  state.made.push_back(task.communicator);
}

void MpiCommunicators::Release(MpiSetCommunicator& communicator) {
  std::lock_guard lock(communicator.mutex_);
  if (communicator.abandoned_) {
    (void)communicator.communicator_.release();
  } else {
    communicator.communicator_.reset();
  }
}

}  // namespace horoscale
