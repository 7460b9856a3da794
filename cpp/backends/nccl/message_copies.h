// MessageCopies: copies messages between CUDA tensors and pinned host memory, concurrently with the
// callers' streams.
//
// Each caller's stream has two copy streams, one per direction. A copy waits for the work that was
// on its caller's stream at the call, and so do all later copies of that caller; so no message
// waits for an independent one. No kernel on these streams waits for another rank.
#pragma once

#include <cstddef>
#include <map>
#include <tuple>

#include "backends/nccl/cuda_device.h"
#include "base/status.h"

namespace horoscale {

class MessageCopies {
 public:
  enum class Direction { kToHost, kToDevice };

  MessageCopies() = default;
  ~MessageCopies();
  MessageCopies(const MessageCopies&) = delete;
  MessageCopies& operator=(const MessageCopies&) = delete;

  // Submits a copy that starts after `ready`; returns the event at its end. The host memory must be
  // pinned.
  Result<CudaEventPtr> Start(CudaDevice& device, const CudaReady& ready, Direction direction,
                             void* to, const void* from, size_t bytes);

 private:
  using Key = std::tuple<CudaDevice*, CudaStreamHandle, Direction>;  // the caller's stream
  std::map<Key, CudaStreamHandle> streams_;
};

}  // namespace horoscale
