// A store with encrypted connections: the same service, for clients that also encrypt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "platform/tls_library.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"

namespace horoscale {
namespace {

constexpr double kLong = 30;

class StoreEncryptionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto tls = TlsLibrary::Open(); !tls.ok()) GTEST_SKIP() << tls.status().message();
  }

  static std::unique_ptr<StoreServer> Start(bool encrypt) {
    return StoreServer::Start({.secret = "secret", .encrypt = encrypt}).TakeValue();
  }
  static Result<std::unique_ptr<StoreClient>> Connect(const StoreServer& server, bool encrypt) {
    return StoreClient::Connect("127.0.0.1", server.port(), "secret", kLong, encrypt);
  }
};

TEST_F(StoreEncryptionTest, ValuesOfAnySizeAreServed) {
  const auto server = Start(true);
  const auto one = Connect(*server, true).TakeValue();
  const auto other = Connect(*server, true).TakeValue();
  for (const size_t bytes : {0, 1, 100'000, 1 << 20}) {
    const std::string key = "of " + std::to_string(bytes);
    const std::vector<std::byte> value(bytes, std::byte{7});
    ASSERT_TRUE(one->Set(key, value).ok());
    const auto got = other->Get(key, kLong);
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(*got, value);
  }
  EXPECT_EQ(one->Get("nobody's", 0.01).status().code(), StatusCode::kTimeout);
}

TEST_F(StoreEncryptionTest, BothSidesHaveToEncryptOrNeither) {
  for (const bool encrypt : {false, true}) {
    const auto server = Start(encrypt);
    const Status status = Connect(*server, !encrypt).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), testing::HasSubstr("HOROSCALE_ENCRYPT"));
    EXPECT_TRUE(Connect(*server, encrypt).ok());
  }
}

}  // namespace
}  // namespace horoscale
