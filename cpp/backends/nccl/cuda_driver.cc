#include "backends/nccl/cuda_driver.h"

#include <utility>
#include <vector>

#include "platform/dynamic_library.h"
#include "platform/environment.h"
#include "platform/function_loader.h"

namespace horoscale {
namespace {

constexpr const char* kSonames[] = {"libcuda.so.1", "libcuda.so"};

const char* LoadFunctions(const DynamicLibrary& library, CudaFunctions& f) {
  FunctionLoader loader(library);
#define HS_LOAD(name) loader.Load(#name, f.name)
  HS_LOAD(cuInit);
  HS_LOAD(cuDriverGetVersion);
  HS_LOAD(cuGetErrorString);
  HS_LOAD(cuDeviceGet);
  HS_LOAD(cuDeviceGetCount);
  HS_LOAD(cuDeviceGetUuid);
  HS_LOAD(cuDevicePrimaryCtxRetain);
  HS_LOAD(cuCtxPushCurrent_v2);
  HS_LOAD(cuCtxPopCurrent_v2);
  HS_LOAD(cuCtxGetStreamPriorityRange);
  HS_LOAD(cuStreamCreateWithPriority);
  HS_LOAD(cuStreamDestroy_v2);
  HS_LOAD(cuStreamWaitEvent);
  HS_LOAD(cuThreadExchangeStreamCaptureMode);
  HS_LOAD(cuStreamIsCapturing);
  HS_LOAD(cuEventCreate);
  HS_LOAD(cuEventRecord);
  HS_LOAD(cuEventQuery);
  HS_LOAD(cuEventDestroy_v2);
  HS_LOAD(cuMemAllocAsync);
  HS_LOAD(cuMemFreeAsync);
  HS_LOAD(cuMemHostAlloc);
  HS_LOAD(cuMemcpyAsync);
#undef HS_LOAD
  return loader.missing();
}

Result<DynamicLibrary> OpenLibcuda() {
  for (const std::string& path : MappedFiles("libcuda.so")) {
    if (auto library = DynamicLibrary::OpenLoaded(path); library.ok()) return library;
  }
  if (const auto named = FindVariable("LIBCUDA")) return DynamicLibrary::Open(named->value);
  std::string tried;
  for (const char* const name : kSonames) {
    auto library = DynamicLibrary::Open(name);
    if (library.ok()) return library;
    tried += "\n  " + library.status().message();
  }
  return Status(
      StatusCode::kUnimplemented,
      "can't load the NVIDIA driver library; set HOROSCALE_LIBCUDA to its path. Tried:" + tried);
}

}  // namespace

Result<const CudaDriver*> CudaDriver::Open() {
  static const Result<const CudaDriver*> found = Find();
  return found;
}

Result<const CudaDriver*> CudaDriver::Find() {
  const auto library = OpenLibcuda();
  if (!library.ok()) return Status(StatusCode::kUnimplemented, library.status().message());
  // Never freed: streams, events and memory of the process depend on it to its end.
  auto* const driver = new CudaDriver;
  if (const char* const missing = LoadFunctions(*library, driver->functions_)) {
    return Status(StatusCode::kUnimplemented, std::string("the NVIDIA driver has no ") + missing +
                                                  ": a driver for CUDA 11.4 or newer is required");
  }
  driver->path_ = DynamicLibrary::FileOf(reinterpret_cast<const void*>(driver->functions_.cuInit));
  Status status = driver->Check(driver->functions_.cuInit(0), "cuInit");
  int devices = 0;
  if (status.ok()) {
    status = driver->Check(driver->functions_.cuDeviceGetCount(&devices), "cuDeviceGetCount");
  }
  if (status.ok() && devices == 0) status = {StatusCode::kUnimplemented, "no CUDA device found"};
  if (!status.ok()) {
    return Status(StatusCode::kUnimplemented, driver->path_ + ": " + status.message());
  }
  (void)driver->functions_.cuDriverGetVersion(&driver->version_);
  return static_cast<const CudaDriver*>(driver);
}

Status CudaDriver::Check(int error, const char* function) const {
  if (error == cuda::kSuccess) return Status::Ok();
  const char* text = nullptr;
  if (functions_.cuGetErrorString(error, &text) != cuda::kSuccess || text == nullptr) {
    text = "unknown error";
  }
  return {StatusCode::kSystem,
          std::string(function) + ": " + text + " (CUDA error " + std::to_string(error) + ")"};
}

std::string CudaDriver::version() const {
  return std::to_string(version_ / 1000) + "." + std::to_string(version_ % 1000 / 10);
}

}  // namespace horoscale
