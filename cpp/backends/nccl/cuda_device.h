// CudaDevice: one GPU as this process uses it: its primary context (the one that torch and every
// CUDA runtime use), events, streams and memory.
//
// Nothing here waits for the device.
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

// A point in a stream, used again after its last owner has let go of it.
class CudaEvent {
 public:
  CudaEvent(CudaDevice& device, CudaEventHandle handle) : device_(device), handle_(handle) {}
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  CudaEventHandle handle() const { return handle_; }
  // Whether the device has come to it. A failed status is the device's own failure.
  Result<bool> IsDone() const;

 private:
  CudaDevice& device_;
  const CudaEventHandle handle_;
};
using CudaEventPtr = std::shared_ptr<const CudaEvent>;

// What the caller of an operation had put into its stream by then.
struct CudaReady {
  CudaStreamHandle stream = nullptr;
  uint64_t serial = 0;  // of two of one stream the larger one is later
  CudaEventPtr event;
};

class CudaDevice {
 public:
  // The process' device of this number, made by the first call and never freed. kUnimplemented
  // without a driver.
  static Result<CudaDevice*> Get(int ordinal);

  int ordinal() const { return ordinal_; }
  const CudaUuid& uuid() const { return uuid_; }
  const CudaDriver& driver() const { return driver_; }

  // The following may be called by any thread, which need not have a context.

  // kInvalidArgument while a CUDA graph is being captured on the stream.
  Result<CudaReady> RecordReady(CudaStreamHandle stream);
  Result<CudaEventPtr> Record(CudaStreamHandle stream);
  Status Wait(CudaStreamHandle stream, const CudaEvent& event) const;
  // Work of two streams that pass in turn, and then launch, becomes ready to run in the same order:
  // whatever the first waits for, the second waits for it too.
  Status PassGate(CudaStreamHandle stream);
  // Of the highest priority, and independent of the legacy default stream.
  Result<CudaStreamHandle> CreateStream() const;
  void DestroyStream(CudaStreamHandle stream) const;

  // Memory from the device's pool for what `user` does from now on. It is given back, by
  // FreeDeviceMemory() or where its OwnedBytes ends, after what `owner` holds by then.
  Result<OwnedBytes> Allocate(size_t bytes, CudaStreamHandle user, CudaStreamHandle owner);
  Status Copy(void* to, const void* from, size_t bytes, CudaStreamHandle stream) const;
  // Host memory that the device copies from and to by itself. It is kept for later calls when it is
  // given back: the driver would wait for the device.
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
  CudaReady gate_;  // where the last one passed
};

// Makes the device the calling thread's current one. A CUDA graph that somebody else captures
// meanwhile isn't concerned: what is called inside has nothing to do with it.
class CudaContextScope {
 public:
  explicit CudaContextScope(const CudaDevice& device);
  ~CudaContextScope();
  CudaContextScope(const CudaContextScope&) = delete;
  CudaContextScope& operator=(const CudaContextScope&) = delete;

 private:
  const CudaDevice& device_;
  int capture_mode_ = cuda::kCaptureModeRelaxed;  // then the thread's own
};

// Gives memory of Allocate() back, after what its owner's stream holds by then. Any thread.
void FreeDeviceMemory(void* memory);

}  // namespace horoscale
