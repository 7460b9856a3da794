// NcclCommunicator: one communicator of NCCL's, of one process set on one device.
//
// Made, used and ended without blocking: NCCL works in threads of its own (blocking = 0) and is
// asked how far it is. What may block all the same (the end) happens in a thread of ours.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "backends/nccl/cuda_device.h"
#include "backends/nccl/nccl_library.h"
#include "base/status.h"

namespace horoscale {

// Whether a communicator that is being ended, in a thread, is gone.
using NcclEnding = std::shared_ptr<const std::atomic<bool>>;

class NcclCommunicator {
 public:
  // Begins to make it. Collective over its ranks, which all give the id that one of them made.
  static Result<std::unique_ptr<NcclCommunicator>> Create(const NcclLibrary& library,
                                                          const CudaDevice& device, int size,
                                                          int rank, const NcclUniqueId& id);
  ~NcclCommunicator();  // aborts it, unless it has been ended

  NcclCommHandle handle() const { return handle_; }
  const NcclLibrary& library() const { return library_; }

  // Whether NCCL is done with all that it was asked for: it may be used. A failed status is an
  // asynchronous error: nothing but the end is left.
  Result<bool> Poll() const;

  // A message to send to another rank, or to receive from it, which makes the other call.
  struct Transfer {
    bool is_send;
    std::byte* memory;
    size_t bytes;
    uint32_t peer;
  };
  // Gives a stream several as one group, which is one launch. The device is the thread's current
  // one.
  Status Launch(std::span<const Transfer> transfers, CudaStreamHandle stream) const;

  // Ends it: with the other ranks, if they come to it within a few seconds, or by force, which
  // makes kernels that wait for a lost rank end.
  enum class How { kTogether, kAbort };
  NcclEnding End(How how);

 private:
  NcclCommunicator(const NcclLibrary& library, const CudaDevice& device)
      : library_(library), device_(device) {}
  static void Run(const NcclLibrary& library, const CudaDevice& device, NcclCommHandle handle,
                  How how);

  const NcclLibrary& library_;
  const CudaDevice& device_;
  NcclCommHandle handle_ = nullptr;
};

}  // namespace horoscale
