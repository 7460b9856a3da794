#include "rendezvous/seal.h"

namespace horoscale {

Status Seal::Check(std::span<const std::byte> message, std::span<const std::byte, kTagBytes> tag) {
  const SipTag expected = Next(message);
  // Takes the same time wherever the tags differ, so that they can't be guessed byte by byte.
  std::byte difference{};
  for (size_t i = 0; i < expected.size(); ++i) difference |= tag[i] ^ expected[i];
  if (difference == std::byte{}) return Status::Ok();
  return Status::Protocol(
      "a message failed authentication: it was modified in transit, or is not the next one that "
      "was sent");
}

}  // namespace horoscale
