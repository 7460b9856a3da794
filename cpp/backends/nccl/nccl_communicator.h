// NcclCommunicator: the NCCL communicator of one process set on one device.
//
// All functions are non-blocking: NCCL works in its own threads (blocking = 0) and is polled for
// completion. The destruction, which may block anyway, runs in a separate thread.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "backends/nccl/cuda_device.h"
#include "backends/nccl/nccl_library.h"
#include "base/status.h"

namespace horoscale {

// Whether a communicator that a thread is destroying is gone.
using NcclEnding = std::shared_ptr<const std::atomic<bool>>;

class NcclCommunicator {
 public:
  // Starts creating it. Collective over its ranks, which all pass the ID that one of them has
  // created.
  static Result<std::unique_ptr<NcclCommunicator>> Create(const NcclLibrary& library,
                                                          const CudaDevice& device, int size,
                                                          int rank, const NcclUniqueId& id);
  ~NcclCommunicator();  // aborts it, unless End() was called

  NcclCommHandle handle() const { return handle_; }
  const NcclLibrary& library() const { return library_; }

  // Whether NCCL has finished all requests, so that the communicator can be used. A failed status
  // is an asynchronous error, after which only End() is allowed.
  Result<bool> Poll() const;

  // A message to send to another rank or to receive from it; the peer makes the opposite call.
  struct Transfer {
    bool is_send;
    std::byte* memory;
    size_t bytes;
    uint32_t peer;
  };
  // Submits several transfers to a stream as one group, which is one launch. The device must be
  // current in this thread.
  Status Launch(std::span<const Transfer> transfers, CudaStreamHandle stream) const;

  // Destroys it: together with the other ranks, if they do the same within a few seconds; or by
  // aborting it, which ends kernels that wait for a lost rank.
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
