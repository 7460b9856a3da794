// MessageCopies: copies of messages between CUDA tensors and pinned memory of the host, beside what
// the callers' streams do.
//
// Each stream of a caller has two streams here, one for each direction. A copy waits for what its
// caller's stream held at the call, as all later ones of that caller do anyway: so no message waits
// for one that is independent of it. No kernel of these streams waits for another rank.
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

  // Gives the device a copy to make after `ready`; the event at its end. The host's memory is
  // pinned.
  Result<CudaEventPtr> Start(CudaDevice& device, const CudaReady& ready, Direction direction,
                             void* to, const void* from, size_t bytes);

 private:
  using Key = std::tuple<CudaDevice*, CudaStreamHandle, Direction>;  // the caller's stream
  std::map<Key, CudaStreamHandle> streams_;
};

}  // namespace horoscale
