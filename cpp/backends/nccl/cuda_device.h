// CudaDevice: one GPU in this process: its primary context (which torch and every CUDA runtime
// use), events, streams and memory.
//
// No function waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/nccl/cuda_driver.h"
#include "base/status.h"
#include "collectives/collective.h"

namespace horoscale {

class CudaDevice;

// A point in a stream. Events are reused after their last owner has released them.
class CudaEvent {
 public:
  CudaEvent(CudaDevice& device, CudaEventHandle handle) : device_(device), handle_(handle) {}
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  CudaEventHandle handle() const { return handle_; }
  // Whether the device has reached it. A failed status is a failure of the device.
  Result<bool> IsDone() const;

 private:
  CudaDevice& device_;
  const CudaEventHandle handle_;
};
using CudaEventPtr = std::shared_ptr<const CudaEvent>;

// The work on the caller's stream when an operation was enqueued.
struct CudaReady {
  CudaStreamHandle stream = nullptr;
  uint64_t serial = 0;  // for the same stream, larger numbers are later
  CudaEventPtr event;
};

class CudaDevice {
 public:
  // The process's device with this ordinal, created by the first call and never freed.
  // kUnimplemented without a driver.
  static Result<CudaDevice*> Get(int ordinal);

  int ordinal() const { return ordinal_; }
  const CudaUuid& uuid() const { return uuid_; }
  const CudaDriver& driver() const { return driver_; }

  // The following may be called by any thread, without a current context.

  // kInvalidArgument while a CUDA graph is being captured on the stream.
  Result<CudaReady> RecordReady(CudaStreamHandle stream);
  Result<CudaEventPtr> Record(CudaStreamHandle stream);
  Status Wait(CudaStreamHandle stream, const CudaEvent& event) const;
  // Orders streams: if two streams pass the gate one after the other and then launch work, the
  // second one also waits for everything that the first one waits for.
  Status PassGate(CudaStreamHandle stream);
  // Creates a stream of the highest priority that does not synchronize with the legacy default
  // stream.
  Result<CudaStreamHandle> CreateStream() const;
  void DestroyStream(CudaStreamHandle stream) const;

  // Allocates memory from the device's pool for later work on `user`. It is freed, by
  // FreeDeviceMemory() or by its OwnedBytes, after the work that is on `owner` at that time.
  Result<OwnedBytes> Allocate(size_t bytes, CudaStreamHandle user, CudaStreamHandle owner);
  Status Copy(void* to, const void* from, size_t bytes, CudaStreamHandle stream) const;
  // Pinned host memory. Freed memory is kept for later calls, because freeing it in the driver
  // would wait for the device.
  Result<OwnedBytes> AllocatePinned(size_t bytes);

 private:
  friend class CudaEvent;
  friend class CudaContextScope;
  CudaDevice(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  static Result<CudaDevice*> Make(int ordinal);
  void Recycle(CudaEventHandle event);
  static void FreePinned(void* memory);

  const CudaDriver& driver_;
  const int ordinal_;
  CudaUuid uuid_;
  CudaContextHandle context_ = nullptr;
  std::mutex mutex_;  // guards the following
  std::vector<CudaEventHandle> free_events_;
  std::multimap<size_t, void*> free_pinned_;  // by size
  uint64_t next_serial_ = 1;
  CudaReady gate_;  // position of the last stream that passed
};

// Makes the device current in the calling thread. Calls within the scope do not affect a CUDA graph
// that another thread captures.
class CudaContextScope {
 public:
  explicit CudaContextScope(const CudaDevice& device);
  ~CudaContextScope();
  CudaContextScope(const CudaContextScope&) = delete;
  CudaContextScope& operator=(const CudaContextScope&) = delete;

 private:
  const CudaDevice& device_;
  int capture_mode_ = cuda::kCaptureModeRelaxed;  // then the thread's previous mode
};

// Frees memory of Allocate(), after the work that is on its owner's stream. Any thread.
void FreeDeviceMemory(void* memory);

}  // namespace horoscale
