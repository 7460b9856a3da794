// The constants of each MPI ABI, in one table: what mpi.h would say, so that none is needed.
//
// A handle is an int in MPICH's family and a pointer elsewhere. Both travel as MpiHandle: passed by
// value an int is the register's lower half; written through a pointer it is the lower half of a
// zeroed MpiHandle, on the little-endian machines that we run on. Arrays of handles are never used.
// tests/python/mpi compares the table with the real headers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace horoscale {

using MpiHandle = uintptr_t;
static_assert(std::endian::native == std::endian::little);

// A predefined handle: a number, or the address of a symbol in the library.
struct MpiConstant {
  MpiHandle value = 0;
  const char* symbol = nullptr;
};

struct MpiConstants {
  const char* abi;  // its name, for messages
  MpiConstant comm_world;
  MpiConstant comm_null;
  MpiConstant request_null;
  MpiConstant byte;
  MpiConstant errors_return;
  MpiHandle status_ignore;
  int any_source;
  int thread_multiple;
  // Offsets in MPI_Status, whose size is at most kMpiStatusBytes.
  size_t status_source;
  size_t status_tag;
};

inline constexpr size_t kMpiStatusBytes = 64;

inline constexpr MpiConstants kMpichConstants = {
    .abi = "MPICH",
    .comm_world = {0x44000000},
    .comm_null = {0x04000000},
    .request_null = {0x2c000000},
    .byte = {0x4c00010d},
    .errors_return = {0x54000001},
    .status_ignore = 1,
    .any_source = -2,
    .thread_multiple = 3,
    .status_source = 8,
    .status_tag = 12,
};

inline constexpr MpiConstants kOpenMpiConstants = {
    .abi = "Open MPI",
    .comm_world = {0, "ompi_mpi_comm_world"},
    .comm_null = {0, "ompi_mpi_comm_null"},
    .request_null = {0, "ompi_request_null"},
    .byte = {0, "ompi_mpi_byte"},
    .errors_return = {0, "ompi_mpi_errors_return"},
    .status_ignore = 0,
    .any_source = -1,
    .thread_multiple = 3,
    .status_source = 0,
    .status_tag = 4,
};

// The ABI that MPI 5 standardizes.
inline constexpr MpiConstants kStandardConstants = {
    .abi = "MPI standard ABI",
    .comm_world = {0x101},
    .comm_null = {0x100},
    .request_null = {0x180},
    .byte = {0x247},
    .errors_return = {0x143},
    .status_ignore = 0,
    .any_source = -1,
    .thread_multiple = 4096,
    .status_source = 0,
    .status_tag = 4,
};

}  // namespace horoscale
