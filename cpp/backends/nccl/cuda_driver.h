// CudaDriver: the process's NVIDIA driver, loaded at run time, without cuda.h or linking to
// libcuda.
//
// Every CUDA runtime is built on the driver API, and contexts, streams and events are the same
// objects in both. So torch's streams can be used here, whichever version of libcudart torch was
// built with or contains.
//
// Search order: the library that the process has loaded, HOROSCALE_LIBCUDA, the system's libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace horoscale {

// Opaque handles.
using CudaContextHandle = struct CudaContextTag*;
using CudaStreamHandle = struct CudaStreamTag*;
using CudaEventHandle = struct CudaEventTag*;
using CudaAddress = uint64_t;

// Constants of the driver's ABI, which are stable.
namespace cuda {
inline constexpr int kSuccess = 0;
inline constexpr int kNotReady = 600;
inline constexpr unsigned kStreamNonBlocking = 1;  // does not wait for the legacy default stream
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostPortable = 1;  // memory is pinned for all contexts
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureModeRelaxed = 2;
}  // namespace cuda

struct CudaUuid {
  std::byte bytes[16] = {};
};

// The driver's functions, by their own names.
struct CudaFunctions {
  int (*cuInit)(unsigned flags);
  int (*cuDriverGetVersion)(int* version);
  int (*cuGetErrorString)(int error, const char** text);
  int (*cuDeviceGet)(int* device, int ordinal);
  int (*cuDeviceGetCount)(int* count);
  int (*cuDeviceGetUuid)(CudaUuid* uuid, int device);
  int (*cuDevicePrimaryCtxRetain)(CudaContextHandle* context, int device);
  int (*cuCtxPushCurrent_v2)(CudaContextHandle context);
  int (*cuCtxPopCurrent_v2)(CudaContextHandle* context);
  int (*cuCtxGetStreamPriorityRange)(int* least, int* greatest);
  int (*cuStreamCreateWithPriority)(CudaStreamHandle* stream, unsigned flags, int priority);
  int (*cuStreamDestroy_v2)(CudaStreamHandle stream);
  int (*cuStreamWaitEvent)(CudaStreamHandle stream, CudaEventHandle event, unsigned flags);
  int (*cuThreadExchangeStreamCaptureMode)(int* mode);
  int (*cuStreamIsCapturing)(CudaStreamHandle stream, int* status);
  int (*cuEventCreate)(CudaEventHandle* event, unsigned flags);
  int (*cuEventRecord)(CudaEventHandle event, CudaStreamHandle stream);
  int (*cuEventQuery)(CudaEventHandle event);
  int (*cuEventDestroy_v2)(CudaEventHandle event);
  int (*cuMemAllocAsync)(CudaAddress* address, size_t bytes, CudaStreamHandle stream);
  int (*cuMemFreeAsync)(CudaAddress address, CudaStreamHandle stream);
  int (*cuMemHostAlloc)(void** memory, size_t bytes, unsigned flags);
  int (*cuMemcpyAsync)(CudaAddress to, CudaAddress from, size_t bytes, CudaStreamHandle stream);
};

class CudaDriver {
 public:
  // The process's driver, loaded and initialized by the first call. kUnimplemented lists what was
  // tried, or what is missing.
  static Result<const CudaDriver*> Open();

  const CudaFunctions& call() const { return functions_; }
  // Returns an error with the failed call and the driver's description.
  Status Check(int error, const char* function) const;

  const std::string& path() const { return path_; }
  std::string version() const;  // of the API, such as "12.8"

 private:
  CudaDriver() = default;
  static Result<const CudaDriver*> Find();

  CudaFunctions functions_ = {};
  std::string path_;
  int version_ = 0;
};

}  // namespace horoscale
