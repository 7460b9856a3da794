// MpiDouble: an MPI library in one process, whose ranks are threads, or share one thread. As in
// many MPI libraries, collectives make progress only while they are tested; Hold() stops them. They
// access the callers' memory when the last rank has called, or later.
#pragma once

#include <memory>
#include <string>

#include "transport/mpi/mpi_library.h"

namespace horoscale::testing {

class MpiDouble {
 public:
  // One at a time. Its memory is kept until the process exits, like that of abandoned operations.
  explicit MpiDouble(int size);
  ~MpiDouble();
  MpiDouble(const MpiDouble&) = delete;
  MpiDouble& operator=(const MpiDouble&) = delete;

  const MpiLibrary& library() const;
  // The rank's MPI_COMM_WORLD.
  MpiHandle World(int rank) const;

  // No collective completes until Release().
  void Hold();
  void Release();

  // The next call of this function fails, on any rank.
  void FailNext(const std::string& function);

  // Communicators that were created and not freed, counted per rank.
  int living() const;
  // Started collectives, counted per rank.
  int begun() const;

  struct State;

 private:
  State* const state_;
  std::unique_ptr<MpiLibrary> library_;
};

}  // namespace horoscale::testing
