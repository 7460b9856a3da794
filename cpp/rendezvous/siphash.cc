#include "rendezvous/siphash.h"

#include <bit>
#include <cstring>

namespace horoscale {
namespace {

static_assert(std::endian::native == std::endian::little, "words are loaded as they are");

uint64_t LoadWord(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

struct State {
  uint64_t v0, v1, v2, v3;

  void Round() {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }

  void Absorb(uint64_t word) {
    v3 ^= word;
    Round();
    Round();
    v0 ^= word;
  }

  uint64_t Squeeze() {
    for (int i = 0; i < 4; ++i) Round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

}  // namespace

SipTag SipHash128(const SipKey& key, uint64_t first, std::span<const std::byte> message) {
  const uint64_t k0 = LoadWord(key.data());
  const uint64_t k1 = LoadWord(key.data() + 8);
  // "somepseudorandomlygeneratedbytes"; 0xee selects tags of 128 bits.
  State state = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee, k0 ^ 0x6c7967656e657261,
                 k1 ^ 0x7465646279746573};
  state.Absorb(first);
  const uint64_t total = sizeof(first) + message.size();
  for (; message.size() >= 8; message = message.subspan(8)) state.Absorb(LoadWord(message.data()));
  uint64_t last = total << 56;
  for (size_t i = 0; i < message.size(); ++i) {
    last |= std::to_integer<uint64_t>(message[i]) << (8 * i);
  }
  state.Absorb(last);
  state.v2 ^= 0xee;
  const uint64_t low = state.Squeeze();
  state.v1 ^= 0xdd;
  const uint64_t high = state.Squeeze();
  SipTag tag;
  std::memcpy(tag.data(), &low, sizeof(low));
  std::memcpy(tag.data() + sizeof(low), &high, sizeof(high));
  return tag;
}

}  // namespace horoscale
