// MpiDouble: an MPI in one process, whose ranks are threads, or all of them one thread. Collectives
// go on only while they are tested, as in many an MPI, and while it is not held; they read and
// write the callers' memory when the last rank has come, or later.
#pragma once

#include <memory>
#include <string>

#include "transport/mpi/mpi_library.h"

namespace horoscale::testing {

class MpiDouble {
 public:
  // One at a time. Its memory stays until the process ends: so may operations that were given up.
  explicit MpiDouble(int size);
  ~MpiDouble();
  MpiDouble(const MpiDouble&) = delete;
  MpiDouble& operator=(const MpiDouble&) = delete;

  const MpiLibrary& library() const;
  // What that rank has as its MPI_COMM_WORLD.
  MpiHandle World(int rank) const;

  // From here on no collective ends until Release().
  void Hold();
  void Release();

  // The next call of this function fails, on whichever rank.
  void FailNext(const std::string& function);

  // Communicators that were made and not freed, counted on each of their ranks.
  int living() const;
  // Collectives that were begun, counted on each of their ranks.
  int begun() const;

  struct State;

 private:
  State* const state_;
  std::unique_ptr<MpiLibrary> library_;
};

}  // namespace horoscale::testing
