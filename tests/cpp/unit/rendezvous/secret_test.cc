#include "rendezvous/secret.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace horoscale {
namespace {

TEST(SecretTest, ANewOneIsStrongAndNewEachTime) {
  const auto one = NewSecret();
  const auto two = NewSecret();
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->size(), kNewSecretCharacters);
  EXPECT_NE(*one, *two);
  EXPECT_TRUE(CheckSecretStrength(*one, "test").ok());
}

TEST(SecretTest, WhatCanBeGuessedIsRefused) {
  for (const std::string weak :
       {"x", "swordfish", "0123456789abcdef", "17320508075688772935274463415058723669",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "abcabcabcabcabcabcabcabcabcabcabcabcabc"}) {
    const Status status = CheckSecretStrength(weak, "HOROSCALE_SECRET");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << weak;
    EXPECT_NE(status.message().find("HOROSCALE_SECRET"), std::string::npos);
    EXPECT_NE(status.message().find("openssl rand -hex 32"), std::string::npos);
    EXPECT_EQ(status.message().find("\"" + weak), std::string::npos);  // it may be a real secret
                                                                       // elsewhere
  }
  for (const std::string strong : {"8f14e45fceea167a5a36dedd4bea2543", "vZ7Kq0sLx2Rb9TnWm4Yc1d",
                                   "Xk3/9vQ+Lr0wZt8bHs5mGg==", "kzqwjxvbfpdgmthlnrsoiueyacqv"}) {
    EXPECT_TRUE(CheckSecretStrength(strong, "test").ok()) << strong;
  }
}

struct File {
  const char* what;
  FileAccess access;
  bool accepted;
};

// For user 1000, who is in groups 1000 and 2000.
class SecretFileAccess : public ::testing::TestWithParam<File> {};

INSTANTIATE_TEST_SUITE_P(All, SecretFileAccess,
                         ::testing::Values(File{"Own", {1000, 1000, 0600}, true},
                                           File{"OwnReadOnly", {1000, 1000, 0400}, true},
                                           File{"OwnForItsGroup", {1000, 1000, 0640}, false},
                                           File{"OwnForRootsGroup", {1000, 0, 0440}, false},
                                           File{"OwnForAll", {1000, 1000, 0644}, false},
                                           File{"OfRoot", {0, 0, 0400}, true},
                                           File{"OfRootForItsGroup", {0, 0, 0440}, true},
                                           File{"OfRootForAGroupOfOurs", {0, 2000, 0440}, true},
                                           File{"OfRootForAnotherGroup", {0, 3000, 0440}, false},
                                           File{"OfRootWritableByAGroup", {0, 2000, 0460}, false},
                                           File{"OfRootForAll", {0, 0, 0444}, false},
                                           File{"OfSomebodyElse", {1001, 1000, 0600}, false}),
                         [](const auto& test) { return test.param.what; });

TEST_P(SecretFileAccess, IsDecidedByOwnerGroupAndMode) {
  const std::vector<gid_t> groups = {1000, 2000};
  const Status status = CheckSecretFile(GetParam().access, 1000, groups, "/run/secret");
  EXPECT_EQ(status.ok(), GetParam().accepted) << status.message();
  EXPECT_EQ(status.message().find("/run/secret") != std::string::npos, !status.ok());
}

class SecretFileTest : public ::testing::Test {
 protected:
  SecretFileTest() { close(mkstemp(path_)); }
  ~SecretFileTest() override { unlink(path_); }
  void Put(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  void ExpectRefused(const std::string& why) {
    const auto secret = ReadSecretFile(path_);
    ASSERT_FALSE(secret.ok());
    EXPECT_NE(secret.status().message().find(why), std::string::npos) << secret.status().message();
  }
  char path_[40] = "/tmp/horoscale_secret_XXXXXX";
};

TEST_F(SecretFileTest, IsReadWithoutTheLinesEnd) {
  Put("hexhexhex\r\n");
  ASSERT_TRUE(ReadSecretFile(path_).ok());
  EXPECT_EQ(*ReadSecretFile(path_), "hexhexhex");
}

TEST_F(SecretFileTest, OneThatIsTooLongIsRefusedAndNotCut) {
  Put(std::string(kMaxSecretBytes, 'x'));
  EXPECT_EQ(ReadSecretFile(path_)->size(), kMaxSecretBytes);
  Put(std::string(kMaxSecretBytes + 1, 'x'));
  ExpectRefused("larger than 4096 bytes");
}

TEST_F(SecretFileTest, OneThatHoldsNoSecretIsRefused) {
  Put("\n");
  ExpectRefused("empty");
  Put(std::string("a\0b", 3));
  ExpectRefused("NUL");
}

TEST_F(SecretFileTest, OneThatOthersCanReadIsRefused) {
  Put("secret");
  ASSERT_EQ(chmod(path_, 0644), 0);
  ExpectRefused("0600");
}

TEST_F(SecretFileTest, APipeIsRefusedAtOnce) {
  unlink(path_);
  ASSERT_EQ(mkfifo(path_, 0600), 0);
  ExpectRefused("not a regular file");
}

}  // namespace
}  // namespace horoscale
