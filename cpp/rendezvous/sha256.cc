#include "rendezvous/sha256.h"

#include <algorithm>
#include <bit>

namespace horoscale {
namespace {

// The fractions of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t LoadBigEndian(const std::byte* p) {
  return std::to_integer<uint32_t>(p[0]) << 24 | std::to_integer<uint32_t>(p[1]) << 16 |
         std::to_integer<uint32_t>(p[2]) << 8 | std::to_integer<uint32_t>(p[3]);
}

}  // namespace

void Sha256::Compress(std::span<const std::byte, kBlockBytes> block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = LoadBigEndian(block.data() + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choice + kRoundConstants[i] + w[i];
    const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const std::array<uint32_t, 8> round = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < round.size(); ++i) state_[i] += round[i];
}

void Sha256::Update(std::span<const std::byte> bytes) {
  total_bytes_ += bytes.size();
  while (!bytes.empty()) {
    const size_t part = std::min(bytes.size(), kBlockBytes - filled_);
    std::copy_n(bytes.begin(), part, block_.begin() + static_cast<ptrdiff_t>(filled_));
    filled_ += part;
    bytes = bytes.subspan(part);
    if (filled_ == kBlockBytes) {
      Compress(block_);
      filled_ = 0;
    }
  }
}

Sha256Digest Sha256::Finish() {
  // A one bit, zeros, and the length in bits so that they end a block.
  const uint64_t total_bits = total_bytes_ * 8;
  std::array<std::byte, kBlockBytes + 8> padding{std::byte{0x80}};
  const size_t zeros_end = (filled_ < 56 ? 56 : 120) - filled_;
  for (size_t i = 0; i < 8; ++i) {
    padding[zeros_end + i] = static_cast<std::byte>(total_bits >> (56 - 8 * i));
  }
  Update(std::span(padding).first(zeros_end + 8));
  Sha256Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Sha256Digest HmacSha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  Sha256Digest hashed_key;
  std::array<std::byte, 64> inner_key{};
  if (key.size() > inner_key.size()) {
    Sha256 hash;
    hash.Update(key);
    hashed_key = hash.Finish();
    key = hashed_key;
  }
  std::copy(key.begin(), key.end(), inner_key.begin());
  std::array<std::byte, 64> outer_key = inner_key;
  for (std::byte& byte : inner_key) byte ^= std::byte{0x36};
  for (std::byte& byte : outer_key) byte ^= std::byte{0x5c};

  Sha256 inner;
  inner.Update(inner_key);
  inner.Update(message);
  Sha256 outer;
  outer.Update(outer_key);
  outer.Update(inner.Finish());
  return outer.Finish();
}

bool ConstantTimeEqual(const Sha256Digest& a, const Sha256Digest& b) {
  std::byte difference{};
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

}  // namespace horoscale
