#include "backends/nccl/message_copies.h"

namespace horoscale {

// Work already submitted to the device still runs.
MessageCopies::~MessageCopies() {
  for (const auto& [key, stream] : streams_) std::get<CudaDevice*>(key)->DestroyStream(stream);
}

Result<CudaEventPtr> MessageCopies::Start(CudaDevice& device, const CudaReady& ready,
                                          Direction direction, void* to, const void* from,
                                          size_t bytes) {
  CudaStreamHandle& stream = streams_[{&device, ready.stream, direction}];
  if (stream == nullptr) {
    const auto made = device.CreateStream();
    if (!made.ok()) return made.status();
    stream = *made;
  }
  HS_RETURN_IF_ERROR(device.Wait(stream, *ready.event));
  HS_RETURN_IF_ERROR(device.Copy(to, from, bytes, stream));
  return device.Record(stream);
}

}  // namespace horoscale
