// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), for the handshake.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace horoscale {

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void Update(std::span<const std::byte> bytes);
  // Returns the digest of all data. The object must not be used afterwards.
  Sha256Digest Finish();

 private:
  static constexpr size_t kBlockBytes = 64;
  void Compress(std::span<const std::byte, kBlockBytes> block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> block_{};
  size_t filled_ = 0;  // of block_
  uint64_t total_bytes_ = 0;
};

Sha256Digest HmacSha256(std::span<const std::byte> key, std::span<const std::byte> message);

// Takes the same time wherever the digests differ, so that guesses can't be refined byte by byte.
bool ConstantTimeEqual(const Sha256Digest& a, const Sha256Digest& b);

}  // namespace horoscale
