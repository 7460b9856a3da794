// SipHash-2-4 with a tag of 128 bits (Aumasson and Bernstein, 2012): a keyed hash that was designed
// to authenticate short messages.
//
// Messages between hosts use it instead of HMAC-SHA256, because they are short and numerous: HMAC
// needs at least two SHA-256 compressions, which take over a microsecond without special
// instructions, on both sides of each of the ten messages of a small allreduce. A key is used for
// one direction of one connection. If a standard algorithm is required, ENCRYPT uses AES-GCM.
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
