#include "runtime/message_memory.h"

#include <cerrno>
#include <cstdlib>
#include <string>

namespace horoscale {

Result<OwnedBytes> AllocatePinnedFor(const Operation& operation) {
  auto pinned = operation.on_device->device->AllocatePinned(operation.message->envelope.bytes);
  if (pinned.ok()) return pinned;
  return Status(pinned.status().code(), operation.DisplayName() + " on process set " +
                                            std::to_string(operation.process_set_id) + ": " +
                                            pinned.status().message());
}

Status MakeRoom(Operation& operation) {
  Message& message = *operation.message;
  const uint64_t bytes = message.envelope.bytes;
  if (bytes == 0) return Status::Ok();
  if (operation.on_device) {
    auto pinned = AllocatePinnedFor(operation);
    if (!pinned.ok()) return pinned.status();
    message.copy = pinned.TakeValue();
    return Status::Ok();
  }
  if (!message.is_view) return Status::Ok();
  message.copy = OwnedBytes(static_cast<std::byte*>(std::malloc(bytes)));
  message.memory = message.copy.get();
  if (message.copy != nullptr) return Status::Ok();
  return Status::System(operation.DisplayName() + ": out of memory for a message of " +
                            std::to_string(bytes) + " bytes",
                        ENOMEM);
}

}  // namespace horoscale
