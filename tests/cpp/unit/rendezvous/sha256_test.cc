// Test vectors of FIPS 180-4's examples and RFC 4231.
#include "rendezvous/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace horoscale {
namespace {

std::vector<std::byte> Bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> Repeat(int byte, size_t count) {
  return std::vector<std::byte>(count, static_cast<std::byte>(byte));
}

std::string Hex(const Sha256Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::string HashHex(std::span<const std::byte> message) {
  Sha256 hash;
  hash.Update(message);
  return Hex(hash.Finish());
}

TEST(Sha256Test, KnownDigests) {
  EXPECT_EQ(HashHex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HashHex(Bytes("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HashHex(Bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HashHex(Repeat('a', 1'000'000)),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesMakeTheSameDigestAtEveryLengthAroundABlock) {
  for (size_t bytes = 0; bytes < 200; ++bytes) {
    const std::vector<std::byte> message = Repeat(0x5a, bytes);
    Sha256 hash;
    for (const std::byte& byte : message) hash.Update(std::span(&byte, 1));
    EXPECT_EQ(Hex(hash.Finish()), HashHex(message)) << bytes;
  }
}

TEST(HmacSha256Test, Rfc4231) {
  EXPECT_EQ(Hex(HmacSha256(Repeat(0x0b, 20), Bytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256(Bytes("Jefe"), Bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(Repeat(0xaa, 20), Repeat(0xdd, 50))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::vector<std::byte> counting;
  for (int i = 1; i <= 25; ++i) counting.push_back(static_cast<std::byte>(i));
  EXPECT_EQ(Hex(HmacSha256(counting, Repeat(0xcd, 50))),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  EXPECT_EQ(Hex(HmacSha256(Repeat(0xaa, 131),
                           Bytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(Hex(HmacSha256(Repeat(0xaa, 131),
                           Bytes("This is a test using a larger than block-size key and a larger "
                                 "than block-size data. The key needs to be hashed before being "
                                 "used by the HMAC algorithm."))),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(ConstantTimeEqualTest, SeesEveryBit) {
  const Sha256Digest a{};
  EXPECT_TRUE(ConstantTimeEqual(a, a));
  for (size_t bit = 0; bit < 256; ++bit) {
    Sha256Digest b = a;
    b[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(ConstantTimeEqual(a, b)) << bit;
  }
}

}  // namespace
}  // namespace horoscale
