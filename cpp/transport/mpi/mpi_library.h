// MpiLibrary: the process's MPI library of any ABI, loaded at run time, without mpi.h or linking to
// libmpi.
//
// Search order: the library that the process has loaded already (as mpi4py does), HOROSCALE_LIBMPI,
// MPI4PY_LIBMPI, the prefix of the launcher, SetLibraryDirectory() (a Python environment's lib),
// and the system's libraries.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "platform/dynamic_library.h"
#include "transport/mpi/mpi_constants.h"

namespace horoscale {

// The bytes of an MPI_Status of any ABI.
struct MpiStatus {
  alignas(8) std::byte bytes[kMpiStatusBytes] = {};
};

// MPI's functions, by their own names.
struct MpiFunctions {
  int (*Initialized)(int* flag);
  int (*Finalized)(int* flag);
  int (*Init_thread)(int* argc, char*** argv, int required, int* provided);
  int (*Query_thread)(int* provided);
  int (*Finalize)();
  int (*Get_library_version)(char* version, int* length);
  int (*Error_string)(int error, char* text, int* length);
  int (*Comm_rank)(MpiHandle comm, int* rank);
  int (*Comm_size)(MpiHandle comm, int* size);
  int (*Comm_group)(MpiHandle comm, MpiHandle* group);
  int (*Group_incl)(MpiHandle group, int count, const int* ranks, MpiHandle* out);
  int (*Group_free)(MpiHandle* group);
  int (*Comm_create_group)(MpiHandle comm, MpiHandle group, int tag, MpiHandle* out);
  int (*Comm_test_inter)(MpiHandle comm, int* flag);
  int (*Comm_idup)(MpiHandle comm, MpiHandle* out, MpiHandle* request);
  int (*Comm_set_errhandler)(MpiHandle comm, MpiHandle handler);
  int (*Comm_free)(MpiHandle* comm);
  int (*Ibcast)(void* data, int count, MpiHandle type, int root, MpiHandle comm,
                MpiHandle* request);
  int (*Iallreduce)(const void* in, void* out, int count, MpiHandle type, MpiHandle op,
                    MpiHandle comm, MpiHandle* request);
  int (*Ireduce_scatter)(const void* in, void* out, const int counts[], MpiHandle type,
                         MpiHandle op, MpiHandle comm, MpiHandle* request);
  int (*Iallgather)(const void* in, int in_count, MpiHandle in_type, void* out, int out_count,
                    MpiHandle out_type, MpiHandle comm, MpiHandle* request);
  int (*Isend)(const void* data, int count, MpiHandle type, int to, int tag, MpiHandle comm,
               MpiHandle* request);
  int (*Irecv)(void* data, int count, MpiHandle type, int from, int tag, MpiHandle comm,
               MpiHandle* request);
  int (*Iprobe)(int from, int tag, MpiHandle comm, int* is_there, MpiStatus* status);
  int (*Get_count)(const MpiStatus* status, MpiHandle type, int* count);
  int (*Test)(MpiHandle* request, int* done, MpiStatus* status);
};

// Predefined handles of this library.
struct MpiHandles {
  MpiHandle comm_world = 0;
  MpiHandle comm_null = 0;
  MpiHandle request_null = 0;
  MpiHandle byte = 0;
  MpiHandle errors_return = 0;
  MpiHandle uint8 = 0;
  MpiHandle int8 = 0;
  MpiHandle uint16 = 0;
  MpiHandle int16 = 0;
  MpiHandle int32 = 0;
  MpiHandle int64 = 0;
  MpiHandle float32 = 0;
  MpiHandle float64 = 0;
  MpiHandle sum = 0;
  MpiHandle min = 0;
  MpiHandle max = 0;
  MpiHandle product = 0;
};

class MpiLibrary {
 public:
  // Functions of one ABI, from any source.
  MpiLibrary(const MpiFunctions& functions, const MpiConstants& constants,
             const MpiHandles& handles)
      : functions_(functions), constants_(&constants), handles_(handles) {}

  // The process's library, loaded by the first call that finds one. kUnimplemented lists what was
  // tried. Any thread.
  static Result<const MpiLibrary*> Open();

  // A directory that is searched before the system's libraries.
  static void SetLibraryDirectory(std::string directory);

  // Initializes MPI with MPI_THREAD_MULTIPLE if it is not initialized, and then finalizes it when
  // the process exits. Fails if MPI is finalized or has a lower thread level.
  Status Initialize() const;

  // This process ends because of an error: MPI is not finalized when it exits, so that the launcher
  // ends the job instead of letting the other ranks wait.
  void ExitWithoutFinalize() const;

  // Keeps memory for the rest of the process's life that MPI may still access, because MPI can't
  // cancel an operation.
  static void Keep(std::shared_ptr<const void> memory);

  bool IsInitialized() const;  // and not finalized
  bool IsFinalized() const;

  const MpiFunctions& call() const { return functions_; }
  const MpiConstants& constants() const { return *constants_; }
  const MpiHandles& handles() const { return handles_; }
  const std::string& path() const { return path_; }
  // The first line of its version string: "Open MPI v5.0.11, …".
  const std::string& version() const { return version_; }

  // Ok for MPI_SUCCESS, else kSystem: "MPI_<function>: <MPI's words>".
  Status Check(int code, const char* function) const;

 private:
  static Result<MpiLibrary> Adopt(const DynamicLibrary& library);
  static Result<MpiLibrary> AdoptLoaded();
  static Result<MpiLibrary> Find();

  MpiFunctions functions_ = {};
  const MpiConstants* constants_ = nullptr;
  MpiHandles handles_;
  std::string path_;
  std::string version_;
};

}  // namespace horoscale
