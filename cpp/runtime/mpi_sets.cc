#include "runtime/mpi_sets.h"

#include <algorithm>
#include <utility>

#include "platform/deadline.h"

namespace horoscale {

Status MpiSets::Use(std::vector<int> ranks, MpiHandle comm, double seconds) {
  std::shared_ptr<MpiCommunicators> mpi;
  {
    std::lock_guard lock(mutex_);
    mpi = mpi_;
  }
  if (mpi == nullptr) return {};
  std::sort(ranks.begin(), ranks.end());
  auto made = mpi->Duplicate(comm, ranks, Deadline::After(seconds));
  if (!made.ok()) return made.status();
  std::lock_guard lock(mutex_);
  prepared_[std::move(ranks)] = made.TakeValue();
  return {};
}

std::shared_ptr<MpiSetCommunicator> MpiSets::Make(const std::vector<int>& ranks) {
  std::lock_guard lock(mutex_);
  if (mpi_ == nullptr) return nullptr;
  if (auto prepared = prepared_.extract(ranks)) return std::move(prepared.mapped());
  return mpi_->Make(ranks);
}

void MpiSets::Free(std::shared_ptr<MpiSetCommunicator> communicator) {
  std::lock_guard lock(mutex_);
  if (mpi_ != nullptr) mpi_->Free(std::move(communicator));
}

void MpiSets::Close() {
  std::shared_ptr<MpiCommunicators> mpi;
  std::lock_guard lock(mutex_);
  mpi.swap(mpi_);
  prepared_.clear();
}

}  // namespace horoscale
