// The constants of each MPI ABI in one table, so that mpi.h is not needed.
//
// A handle is an int in the MPICH family and a pointer elsewhere. MpiHandle holds both: passed by
// value, an int is the register's lower half; written through a pointer, it is the lower half of a
// zeroed MpiHandle on the little-endian machines that are supported. Arrays of handles are never
// used. tests/python/mpi compares the table with the real headers.
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
  const char* abi;  // the name of the ABI, for messages
  MpiConstant comm_world;
  MpiConstant comm_null;
  MpiConstant request_null;
  MpiConstant byte;
  MpiConstant errors_return;
  MpiConstant uint8;
  MpiConstant int8;
  MpiConstant uint16;
  MpiConstant int16;
  MpiConstant int32;
  MpiConstant int64;
  MpiConstant float32;
  MpiConstant float64;
  MpiConstant sum;
  MpiConstant min;
  MpiConstant max;
  MpiConstant product;
  MpiHandle in_place;  // an address
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
    .uint8 = {0x4c00013b},
    .int8 = {0x4c000137},
    .uint16 = {0x4c00023c},
    .int16 = {0x4c000238},
    .int32 = {0x4c000439},
    .int64 = {0x4c00083a},
    .float32 = {0x4c00040a},
    .float64 = {0x4c00080b},
    .sum = {0x58000003},
    .min = {0x58000002},
    .max = {0x58000001},
    .product = {0x58000004},
    .in_place = ~MpiHandle{0},
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
    .uint8 = {0, "ompi_mpi_uint8_t"},
    .int8 = {0, "ompi_mpi_int8_t"},
    .uint16 = {0, "ompi_mpi_uint16_t"},
    .int16 = {0, "ompi_mpi_int16_t"},
    .int32 = {0, "ompi_mpi_int32_t"},
    .int64 = {0, "ompi_mpi_int64_t"},
    .float32 = {0, "ompi_mpi_float"},
    .float64 = {0, "ompi_mpi_double"},
    .sum = {0, "ompi_mpi_op_sum"},
    .min = {0, "ompi_mpi_op_min"},
    .max = {0, "ompi_mpi_op_max"},
    .product = {0, "ompi_mpi_op_prod"},
    .in_place = 1,
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
    .uint8 = {0x241},
    .int8 = {0x240},
    .uint16 = {0x249},
    .int16 = {0x248},
    .int32 = {0x250},
    .int64 = {0x258},
    .float32 = {0x210},
    .float64 = {0x214},
    .sum = {0x21},
    .min = {0x22},
    .max = {0x23},
    .product = {0x24},
    .in_place = 1,
    .status_ignore = 0,
    .any_source = -1,
    .thread_multiple = 4096,
    .status_source = 0,
    .status_tag = 4,
};

}  // namespace horoscale
