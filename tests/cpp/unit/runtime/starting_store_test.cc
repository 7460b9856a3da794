// What ranks that start learn from the store of one that fails.
#include "runtime/starting_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>

#include "rendezvous/store_server.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;

constexpr double kLong = 30;  // seconds; a test that waits so long has failed

class StartingStoreTest : public testing::Test {
 protected:
  std::unique_ptr<StartingStore> Rank(int rank) {
    auto client = StoreClient::Connect("127.0.0.1", server_->port(), "secret", kLong);
    const Deadline deadline = Deadline::After(kLong);
    return StartingStore::Create(client.TakeValue(), "init1/", rank, deadline).TakeValue();
  }

  static StoreServerOptions Options() {
    StoreServerOptions options;
    options.secret = "secret";
    return options;
  }

  std::unique_ptr<StoreServer> server_ = StoreServer::Start(Options()).TakeValue();
};

TEST_F(StartingStoreTest, NobodyWaitsForARankWhoseProcessHasEnded) {
  const auto first = Rank(0);
  auto second = Rank(1);
  EXPECT_TRUE(first->Look().ok());
  std::thread ending([&] { second.reset(); });
  const Status status = first->Get("its key", kLong).status();
  ending.join();
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  const Status explained = first->Explain(status);
  EXPECT_THAT(explained.message(), HasSubstr("the first to fail was rank 1: its process ended"));
  EXPECT_FALSE(first->Look().ok());
}

TEST_F(StartingStoreTest, TheFirstReasonIsToldToAll) {
  const auto first = Rank(0);
  auto second = Rank(1);
  const Status own = second->Explain(Status(StatusCode::kSystem, "no memory"));
  EXPECT_EQ(own.message(), "no memory");
  second.reset();  // what it has said itself stays
  const Status later = first->Explain(first->Get("its key", kLong).status());
  EXPECT_THAT(later.message(), HasSubstr("the first to fail was rank 1: no memory"));
}

TEST_F(StartingStoreTest, AnotherStartOfTheJobIsNotConcerned) {
  const auto first = Rank(0);
  auto client = StoreClient::Connect("127.0.0.1", server_->port(), "secret", kLong);
  const Deadline deadline = Deadline::After(kLong);
  auto other = StartingStore::Create(client.TakeValue(), "init0/", 1, deadline).TakeValue();
  (void)other->Explain(Status(StatusCode::kSystem, "no memory"));
  EXPECT_TRUE(first->Look().ok());
  const Status status = first->Get("its key", 0.3).status();
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("'its key' within 0.3"));
}

}  // namespace
}  // namespace horoscale
