#include "rendezvous/session_keys.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace horoscale {
namespace {

const std::vector<std::byte> kNonces(64, std::byte{7});

TEST(SessionKeysTest, EverySideOfEveryConnectionHasKeysOfItsOwn) {
  std::vector<std::byte> other_nonces = kNonces;
  other_nonces[63] ^= std::byte{1};
  std::set<std::vector<std::byte>> keys;
  for (const SessionKeys& one :
       {DeriveSessionKeys("secret", kNonces, "store"), DeriveSessionKeys("secret", kNonces, "link"),
        DeriveSessionKeys("other", kNonces, "store"),
        DeriveSessionKeys("secret", other_nonces, "store")}) {
    keys.emplace(one.client_to_server.begin(), one.client_to_server.end());
    keys.emplace(one.server_to_client.begin(), one.server_to_client.end());
    keys.emplace(one.tls.begin(), one.tls.begin() + 16);
  }
  EXPECT_EQ(keys.size(), 12u);
}

// Computed with Python's hmac and hashlib, as an independent implementation.
TEST(SessionKeysTest, KeysAreThoseOfHkdf) {
  const auto hex = [](std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte byte : bytes) {
      for (const int shift : {4, 0}) {
        text += "0123456789abcdef"[std::to_integer<size_t>(byte >> shift) & 15];
      }
    }
    return text;
  };
  const SessionKeys keys = DeriveSessionKeys("secret", kNonces, "store");
  EXPECT_EQ(hex(keys.client_to_server), "e57fa5c958ba653fa8c9a655e7dd7bdc");
  EXPECT_EQ(hex(keys.server_to_client), "16641849e3563a6dc0ef786fb83ac7a7");
  EXPECT_EQ(hex(keys.tls), "6c4f6d1ef9852d909ddaff294fe1711c67c00fa2e806ded7c702ec1b43ada02e");
}

}  // namespace
}  // namespace horoscale
