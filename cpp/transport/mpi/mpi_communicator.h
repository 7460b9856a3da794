// MpiCommunicator: a private communicator that returns errors and limits all waits by deadlines.
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
  // A duplicate of the user's communicator. Collective over it; kTimeout if not all of its ranks
  // call this, and kInvalidArgument for an intercommunicator.
  static Result<std::unique_ptr<MpiCommunicator>> Duplicate(const MpiLibrary& mpi, MpiHandle comm,
                                                            const Deadline& deadline);

  // A communicator of some ranks of MPI_COMM_WORLD, in this order. Collective over them; MPI
  // provides no way to limit the wait.
  static Result<std::unique_ptr<MpiCommunicator>> OfWorldRanks(const MpiLibrary& mpi,
                                                               std::span<const int> ranks);

  // The same for some of the parent's ranks, in this order.
  static Result<std::unique_ptr<MpiCommunicator>> OfRanks(const MpiCommunicator& parent,
                                                          std::span<const int> ranks);

  // The number of communicators in this process that have not been freed.
  static int Living();

  // Frees it, unless MPI is finalized or Keep() was called.
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  const MpiLibrary& mpi() const { return mpi_; }
  MpiHandle handle() const { return handle_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Never free it, because an operation on it was abandoned.
  void Keep() { is_kept_ = true; }

  // All ranks receive the root's bytes. Collective.
  Status Broadcast(std::span<std::byte> data, int root, const Deadline& deadline);

  // Returns the bytes of all ranks, in rank order; all contribute the same number. Collective.
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
