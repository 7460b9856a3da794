// Whatever another process writes into the memory of a control ring, the reader reads only inside
// the ring, returns whole frames, and stops at an error.
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/codec.h"
#include "transport/memory/frame_stream.h"

using namespace horoscale;

namespace {

constexpr size_t kCapacity = 256;

class Ring {
 public:
  // The producer's counter is set from the input, or advances by the bytes written.
  void Write(std::span<const uint8_t> bytes, bool is_counter) {
    uint64_t head = control().head.load();
    if (is_counter) {
      std::memcpy(&head, bytes.data(), std::min(bytes.size(), sizeof(head)));
    } else {
      for (const uint8_t byte : bytes) {
        memory_[sizeof(RingControl) + head++ % kCapacity] = static_cast<std::byte>(byte);
      }
    }
    control().head.store(head);
  }

  // Whether the stream is still usable.
  bool ReadAll() {
    while (true) {
      const Result<const Frame*> frame = reader_.Next();
      if (!frame.ok()) return false;
      if (*frame == nullptr) return true;
      if ((*frame)->payload.size() > kMaxMessageBytes) abort();
    }
  }

 private:
  RingControl& control() { return *reinterpret_cast<RingControl*>(memory_); }

  alignas(64) std::byte memory_[RingMemoryBytes(kCapacity)] = {};
  SleepFlag sleeping_{0};
  EventFd event_ = EventFd::Create().TakeValue();
  Doorbell doorbell_{&sleeping_, &event_};
  FrameReader reader_{RingConsumer(memory_, kCapacity), &doorbell_};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Ring ring;
  std::span<const uint8_t> input(data, size);
  while (!input.empty()) {
    const bool is_counter = input[0] >= kCapacity - 8;
    const size_t bytes = std::min<size_t>(is_counter ? 8 : input[0], input.size() - 1);
    ring.Write(input.subspan(1, bytes), is_counter);
    input = input.subspan(1 + bytes);
    if (!ring.ReadAll()) break;
  }
  return 0;
}
