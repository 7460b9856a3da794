#include "rendezvous/siphash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace horoscale {
namespace {

std::string Hex(const SipTag& tag) {
  std::string text;
  for (const std::byte byte : tag) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(byte));
    text += digits;
  }
  return text;
}

// Key and messages of the authors' test vectors: the bytes 0, 1, 2, …
std::string TagOfLength(size_t bytes) {
  SipKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  std::vector<std::byte> rest;
  for (size_t i = 8; i < bytes; ++i) rest.push_back(static_cast<std::byte>(i));
  return Hex(SipHash128(key, 0x0706050403020100, rest));
}

TEST(SipHashTest, TagsAreThoseOfTheAuthors) {
  EXPECT_EQ(TagOfLength(8), "3b62a9ba6258f5610f83e264f31497b4");
  EXPECT_EQ(TagOfLength(9), "264499060ad9baabc47f8b02bb6d71ed");
  EXPECT_EQ(TagOfLength(15), "5493e99933b0a8117e08ec0f97cfc3d9");
  EXPECT_EQ(TagOfLength(16), "6ee2a4ca67b054bbfd3315bf85230577");
  EXPECT_EQ(TagOfLength(31), "2939b0183223fafc1723de4f52c43d35");
  EXPECT_EQ(TagOfLength(48), "f7e5aef549f782cf379055a608269b16");
  EXPECT_EQ(TagOfLength(63), "5150d1772f50834a503e069a973fbd7c");
}

}  // namespace
}  // namespace horoscale
