// Seal: one direction of a connection whose messages are authenticated. Each message has a tag that
// depends on how many came before it, so that none can be changed, left out, repeated, moved, or
// taken from another connection or from the other direction, which have other keys.
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

  // `sequence`: of the first message.
  explicit Seal(const SipKey& key, uint64_t sequence = 0) : key_(key), sequence_(sequence) {}

  // The tag of the next message.
  SipTag Next(std::span<const std::byte> message) { return SipHash128(key_, sequence_++, message); }

  // Whether this is the tag of the next message; kProtocol if it isn't.
  Status Check(std::span<const std::byte> message, std::span<const std::byte, kTagBytes> tag);

 private:
  SipKey key_;
  uint64_t sequence_;
};

}  // namespace horoscale
