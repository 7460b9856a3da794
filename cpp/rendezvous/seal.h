// Seal: one direction of a connection with authenticated messages. Each message has a tag that
// depends on its sequence number, so that messages can't be modified, dropped, replayed, reordered,
// or taken from another connection or direction, which have different keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "rendezvous/siphash.h"

namespace horoscale {

class Seal {
 public:
  static constexpr size_t kTagBytes = sizeof(SipTag);

  // `sequence` is the number of the first message.
  explicit Seal(const SipKey& key, uint64_t sequence = 0) : key_(key), sequence_(sequence) {}

  // The tag of the next message.
  SipTag Next(std::span<const std::byte> message) { return SipHash128(key_, sequence_++, message); }

  // Checks the tag of the next message; kProtocol if it is wrong.
  Status Check(std::span<const std::byte> message, std::span<const std::byte, kTagBytes> tag);

 private:
  SipKey key_;
  uint64_t sequence_;
};

}  // namespace horoscale
