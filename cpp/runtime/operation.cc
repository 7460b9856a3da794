#include "runtime/operation.h"

#include "core/mailbox.h"

namespace horoscale {

std::string Operation::DisplayName() const {
  if (message == nullptr) return request.DisplayName();
  const std::string whom =
      message->peer == kAnyPeer ? "any rank" : "rank " + std::to_string(message->peer);
  const uint8_t channel = message->envelope.channel;
  return (message->is_send ? "send to " : "recv from ") + whom + ", tag " +
         std::to_string(message->envelope.tag) +
         (channel == 0 ? "" : ", channel " + std::to_string(channel));
}

}  // namespace horoscale
