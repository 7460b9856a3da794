// Declarations of the part of NCCL's API that is used, so that nccl.h is not needed.
// tests/python/nccl compares values and layouts with the real header.
#pragma once

#include <climits>
#include <cstddef>

#include "backends/nccl/cuda_driver.h"

namespace horoscale {

using NcclCommHandle = struct NcclCommTag*;

namespace nccl {

inline constexpr int kOldestVersion = 21800;  // first version with all required features of
                                              // non-blocking communicators
inline constexpr int kMultiRankVersion = 23003;

// Results.
inline constexpr int kSuccess = 0;
inline constexpr int kInProgress = 7;

// Element types.
inline constexpr int kInt8 = 0;
inline constexpr int kUint8 = 1;
inline constexpr int kInt32 = 2;
inline constexpr int kInt64 = 4;
inline constexpr int kFloat16 = 6;
inline constexpr int kFloat32 = 7;
inline constexpr int kFloat64 = 8;
inline constexpr int kBfloat16 = 9;

// Operators.
inline constexpr int kSum = 0;
inline constexpr int kProd = 1;
inline constexpr int kMax = 2;
inline constexpr int kMin = 3;
inline constexpr int kAvg = 4;

inline constexpr int kScalarInHostMemory = 1;  // which is read during the call

inline constexpr int kUndefined = INT_MIN;

}  // namespace nccl

struct NcclUniqueId {
  char bytes[128] = {};
};

// ncclConfig_t as version 2.18 has it; later libraries take its size and version into account.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = nccl::kOldestVersion;
  int blocking = 0;
  int cga_cluster_size = nccl::kUndefined;
  int min_ctas = nccl::kUndefined;
  int max_ctas = nccl::kUndefined;
  const char* net_name = nullptr;
  int split_share = nccl::kUndefined;
};

// NCCL's functions, by their own names.
struct NcclFunctions {
  int (*ncclGetVersion)(int* version);
  int (*ncclGetUniqueId)(NcclUniqueId* id);
  const char* (*ncclGetErrorString)(int result);
  const char* (*ncclGetLastError)(NcclCommHandle comm);
  int (*ncclCommInitRankConfig)(NcclCommHandle* comm, int size, NcclUniqueId id, int rank,
                                NcclConfig* config);
  int (*ncclCommGetAsyncError)(NcclCommHandle comm, int* result);
  int (*ncclCommFinalize)(NcclCommHandle comm);
  int (*ncclCommDestroy)(NcclCommHandle comm);
  int (*ncclCommAbort)(NcclCommHandle comm);
  int (*ncclRedOpCreatePreMulSum)(int* op, void* scalar, int type, int residence,
                                  NcclCommHandle comm);
  int (*ncclRedOpDestroy)(int op, NcclCommHandle comm);
  int (*ncclGroupStart)();
  int (*ncclGroupEnd)();
  int (*ncclAllReduce)(const void* in, void* out, size_t count, int type, int op,
                       NcclCommHandle comm, CudaStreamHandle stream);
  int (*ncclReduce)(const void* in, void* out, size_t count, int type, int op, int root,
                    NcclCommHandle comm, CudaStreamHandle stream);
  int (*ncclBroadcast)(const void* in, void* out, size_t count, int type, int root,
                       NcclCommHandle comm, CudaStreamHandle stream);
  int (*ncclAllGather)(const void* in, void* out, size_t count, int type, NcclCommHandle comm,
                       CudaStreamHandle stream);
  int (*ncclReduceScatter)(const void* in, void* out, size_t count, int type, int op,
                           NcclCommHandle comm, CudaStreamHandle stream);
  int (*ncclSend)(const void* in, size_t count, int type, int peer, NcclCommHandle comm,
                  CudaStreamHandle stream);
  int (*ncclRecv)(void* out, size_t count, int type, int peer, NcclCommHandle comm,
                  CudaStreamHandle stream);
};

}  // namespace horoscale
