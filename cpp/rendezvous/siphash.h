// SipHash-2-4 with a tag of 128 bits (Aumasson and Bernstein, 2012): a keyed hash that was designed
// to authenticate short messages.
//
// Messages between hosts carry it rather than HMAC-SHA256 because they are short and many: HMAC
// takes two compressions of SHA-256 at least, over a microsecond without special instructions, at
// both ends of each of the ten messages of a small allreduce. A key is good for one direction of
// one connection. Where a standard algorithm is required there is ENCRYPT, with AES-GCM.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace horoscale {

using SipKey = std::array<std::byte, 16>;
using SipTag = std::array<std::byte, 16>;

// The tag of the eight bytes of `first`, the least significant one first, and then the message.
SipTag SipHash128(const SipKey& key, uint64_t first, std::span<const std::byte> message);

}  // namespace horoscale
