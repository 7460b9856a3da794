// MpiCommunicator: a communicator of our own, in which errors are values and nothing waits longer
// than a deadline.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "transport/mpi/mpi_library.h"

namespace horoscale {

class MpiCommunicator {
 public:
  // A duplicate of the user's. Collective over it; kTimeout if not all of its ranks come, and
  // kInvalidArgument for an intercommunicator.
  static Result<std::unique_ptr<MpiCommunicator>> Duplicate(const MpiLibrary& mpi, MpiHandle comm,
                                                            const Deadline& deadline);

  // Of some ranks of MPI_COMM_WORLD, in this order. Collective over them; MPI has no way to bound
  // the wait.
  static Result<std::unique_ptr<MpiCommunicator>> OfWorldRanks(const MpiLibrary& mpi,
                                                               std::span<const int> ranks);

  // Of some of its ranks, in this order; as above.
  static Result<std::unique_ptr<MpiCommunicator>> OfRanks(const MpiCommunicator& parent,
                                                          std::span<const int> ranks);

  // How many there are in this process, and have not been freed.
  static int Living();

  // Frees it, unless MPI is finalized, or was told to keep it.
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  const MpiLibrary& mpi() const { return mpi_; }
  MpiHandle handle() const { return handle_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // MPI has an operation on it that was given up: it is never freed.
  void Keep() { is_kept_ = true; }

  // Everybody gets the root's bytes. Collective.
  Status Broadcast(std::span<std::byte> data, int root, const Deadline& deadline);

  // Everybody's bytes, as many from each, by rank. Collective.
  Result<std::vector<std::byte>> AllGather(std::span<const std::byte> own,
                                           const Deadline& deadline);

 private:
  static Result<std::unique_ptr<MpiCommunicator>> OfRanksOf(const MpiLibrary& mpi, MpiHandle parent,
                                                            std::span<const int> ranks);
  MpiCommunicator(const MpiLibrary& mpi, MpiHandle handle);
  static Result<std::unique_ptr<MpiCommunicator>> Adopt(const MpiLibrary& mpi, MpiHandle handle);

  const MpiLibrary& mpi_;
  MpiHandle handle_;
  int rank_ = 0;
  int size_ = 1;
  bool is_kept_ = false;
};

}  // namespace horoscale
