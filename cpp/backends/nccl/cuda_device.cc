#include "backends/nccl/cuda_device.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>

namespace horoscale {
namespace {

constexpr size_t kSmallestPinned = size_t{64} << 10;

// The owner of memory, for a deleter that is given only an address.
struct Allocation {
  CudaDevice* device;
  CudaStreamHandle owner;  // of device memory
  size_t bytes;            // of pinned memory
};
struct Registry {
  std::mutex mutex;
  std::map<int, CudaDevice*> devices;
  std::map<const void*, Allocation> allocations;
};
Registry& TheRegistry() {
  static auto* const registry = new Registry;  // memory may be freed until the process ends
  return *registry;
}

Allocation TakeAllocation(const void* memory) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  const auto found = registry.allocations.find(memory);
  const Allocation allocation = found->second;
  registry.allocations.erase(found);
  return allocation;
}

OwnedBytes Register(std::byte* memory, const Allocation& allocation, void (*free)(void*)) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  registry.allocations[memory] = allocation;
  return {memory, {free}};
}

}  // namespace

CudaContextScope::CudaContextScope(const CudaDevice& device) : device_(device) {
  const CudaFunctions& call = device.driver_.call();
  (void)call.cuCtxPushCurrent_v2(device.context_);
  (void)call.cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

CudaContextScope::~CudaContextScope() {
  (void)device_.driver_.call().cuThreadExchangeStreamCaptureMode(&capture_mode_);
  CudaContextHandle popped = nullptr;
  (void)device_.driver_.call().cuCtxPopCurrent_v2(&popped);
}

CudaEvent::~CudaEvent() { device_.Recycle(handle_); }

Result<bool> CudaEvent::IsDone() const {
  const CudaContextScope scope(device_);
  const int answer = device_.driver().call().cuEventQuery(handle_);
  if (answer == cuda::kNotReady) return false;
  HS_RETURN_IF_ERROR(device_.driver().Check(answer, "cuEventQuery"));
  return true;
}

Result<CudaDevice*> CudaDevice::Get(int ordinal) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  const auto found = registry.devices.find(ordinal);
  if (found != registry.devices.end()) return found->second;
  const auto made = Make(ordinal);
  if (made.ok()) registry.devices[ordinal] = *made;
  return made;
}

Result<CudaDevice*> CudaDevice::Make(int ordinal) {
  const auto driver = CudaDriver::Open();
  if (!driver.ok()) return driver.status();
  const CudaFunctions& call = (*driver)->call();
  int number = 0;
  HS_RETURN_IF_ERROR((*driver)->Check(call.cuDeviceGet(&number, ordinal), "cuDeviceGet"));
  std::unique_ptr<CudaDevice> device(new CudaDevice(**driver, ordinal));
  HS_RETURN_IF_ERROR(
      (*driver)->Check(call.cuDeviceGetUuid(&device->uuid_, number), "cuDeviceGetUuid"));
  HS_RETURN_IF_ERROR((*driver)->Check(call.cuDevicePrimaryCtxRetain(&device->context_, number),
                                      "cuDevicePrimaryCtxRetain"));
  return device.release();
}

Result<CudaReady> CudaDevice::RecordReady(CudaStreamHandle stream) {
  const CudaContextScope scope(*this);
  int capture = cuda::kCaptureNone;
  HS_RETURN_IF_ERROR(
      driver_.Check(driver_.call().cuStreamIsCapturing(stream, &capture), "cuStreamIsCapturing"));
  if (capture != cuda::kCaptureNone) {
    return Status::InvalidArgument(
        "a CUDA graph is being captured on the current stream. A collective can't be captured, "
        "because the ranks negotiate each operation: call it outside of the capture");
  }
  // Serials follow the order in which events are recorded.
  std::unique_lock lock(mutex_);
  CudaReady ready{stream, next_serial_++, nullptr};
  CudaEventHandle event = nullptr;
  if (!free_events_.empty()) {
    event = free_events_.back();
    free_events_.pop_back();
  } else {
    HS_RETURN_IF_ERROR(driver_.Check(
        driver_.call().cuEventCreate(&event, cuda::kEventDisableTiming), "cuEventCreate"));
  }
  Status status = driver_.Check(driver_.call().cuEventRecord(event, stream), "cuEventRecord");
  lock.unlock();
  ready.event = std::make_shared<const CudaEvent>(*this, event);
  if (!status.ok()) return status;
  return ready;
}

Result<CudaEventPtr> CudaDevice::Record(CudaStreamHandle stream) {
  auto ready = RecordReady(stream);
  if (!ready.ok()) return ready.status();
  return std::move(ready->event);
}

void CudaDevice::Recycle(CudaEventHandle event) {
  std::lock_guard lock(mutex_);
  free_events_.push_back(event);
}

Status CudaDevice::Wait(CudaStreamHandle stream, const CudaEvent& event) const {
  const CudaContextScope scope(*this);
  return driver_.Check(driver_.call().cuStreamWaitEvent(stream, event.handle(), 0),
                       "cuStreamWaitEvent");
}

Status CudaDevice::PassGate(CudaStreamHandle stream) {
  CudaReady last;
  {
    std::lock_guard lock(mutex_);
    last = gate_;
  }
  if (last.event != nullptr && last.stream != stream) {
    HS_RETURN_IF_ERROR(Wait(stream, *last.event));
  }
  auto passed = RecordReady(stream);
  if (!passed.ok()) return passed.status();
  std::unique_lock lock(mutex_);
  std::swap(gate_, *passed);
  lock.unlock();  // release the previous event without the lock
  return Status::Ok();
}

Result<CudaStreamHandle> CudaDevice::CreateStream() const {
  const CudaContextScope scope(*this);
  int least = 0;
  int greatest = 0;
  HS_RETURN_IF_ERROR(driver_.Check(driver_.call().cuCtxGetStreamPriorityRange(&least, &greatest),
                                   "cuCtxGetStreamPriorityRange"));
  CudaStreamHandle stream = nullptr;
  HS_RETURN_IF_ERROR(driver_.Check(
      driver_.call().cuStreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, greatest),
      "cuStreamCreateWithPriority"));
  return stream;
}

void CudaDevice::DestroyStream(CudaStreamHandle stream) const {
  const CudaContextScope scope(*this);
  (void)driver_.call().cuStreamDestroy_v2(stream);
}

Result<OwnedBytes> CudaDevice::Allocate(size_t bytes, CudaStreamHandle user,
                                        CudaStreamHandle owner) {
  const CudaContextScope scope(*this);
  CudaAddress address = 0;
  HS_RETURN_IF_ERROR(driver_.Check(driver_.call().cuMemAllocAsync(&address, bytes, user),
                                   "cuMemAllocAsync for a result"));
  return Register(reinterpret_cast<std::byte*>(address), {this, owner, 0}, FreeDeviceMemory);
}

Status CudaDevice::Copy(void* to, const void* from, size_t bytes, CudaStreamHandle stream) const {
  if (bytes == 0) return Status::Ok();
  const CudaContextScope scope(*this);
  return driver_.Check(
      driver_.call().cuMemcpyAsync(reinterpret_cast<CudaAddress>(to),
                                   reinterpret_cast<CudaAddress>(from), bytes, stream),
      "cuMemcpyAsync");
}

Result<OwnedBytes> CudaDevice::AllocatePinned(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kSmallestPinned));
  void* memory = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (const auto free = free_pinned_.find(size); free != free_pinned_.end()) {
      memory = free->second;
      free_pinned_.erase(free);
    }
  }
  if (memory == nullptr) {
    const CudaContextScope scope(*this);
    HS_RETURN_IF_ERROR(driver_.Check(
        driver_.call().cuMemHostAlloc(&memory, size, cuda::kHostPortable), "cuMemHostAlloc"));
  }
  return Register(static_cast<std::byte*>(memory), {this, nullptr, size}, FreePinned);
}

void CudaDevice::FreePinned(void* memory) {
  const Allocation allocation = TakeAllocation(memory);
  CudaDevice& device = *allocation.device;
  std::lock_guard lock(device.mutex_);
  device.free_pinned_.emplace(allocation.bytes, memory);
}

void FreeDeviceMemory(void* memory) {
  if (memory == nullptr) return;
  const Allocation allocation = TakeAllocation(memory);
  const CudaContextScope scope(*allocation.device);
  (void)allocation.device->driver().call().cuMemFreeAsync(reinterpret_cast<CudaAddress>(memory),
                                                          allocation.owner);
}

}  // namespace horoscale
