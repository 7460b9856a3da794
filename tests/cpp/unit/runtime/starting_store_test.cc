// What starting ranks learn through the store about one that fails.
#include "runtime/starting_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/store_server.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;

constexpr double kLong = 30;  // seconds; a test that waits this long has failed

class StartingStoreTest : public ::testing::Test {
 protected:
  // Ranks 0 and 1 of a job of two, in this process.
  std::vector<std::unique_ptr<StartingStore>> Job(const std::string& name) {
    std::vector<std::unique_ptr<StartingStore>> stores(2);
    const auto join = [&](int rank) {
      auto client = StoreClient::Connect("127.0.0.1", server_->port(), "secret", kLong);
      const std::string card = "card of rank " + std::to_string(rank);
      auto store = StartingStore::Join(client.TakeValue(), {name, rank, 2, "label", card},
                                       Deadline::After(kLong));
      ASSERT_TRUE(store.ok()) << store.status().message();
      stores[static_cast<size_t>(rank)] = store.TakeValue();
    };
    std::thread other(join, 1);
    join(0);
    other.join();
    return stores;
  }

  static StoreServerOptions Options() {
    StoreServerOptions options;
    options.secret = "secret";
    return options;
  }

  // The result for a rank that waits for the other.
  static Status Wait(StartingStore& store, double seconds) {
    const std::string key = store.prefix() + "here";
    return store.Gather({key, 0, 2, {}}, seconds).status();
  }

  std::unique_ptr<StoreServer> server_ = StoreServer::Start(Options()).TakeValue();
};

TEST_F(StartingStoreTest, RanksThatJoinSeeEachOthersCardsAndHaveAPrefixOfTheirOwn) {
  const auto first = Job("init");
  const auto second = Job("init");
  EXPECT_EQ(first[0]->cards().at(1), "card of rank 1");
  EXPECT_EQ(first[0]->prefix(), first[1]->prefix());
  EXPECT_NE(first[0]->prefix(), second[0]->prefix());
}

TEST_F(StartingStoreTest, NobodyWaitsForARankWhoseProcessHasEnded) {
  auto stores = Job("init");
  EXPECT_TRUE(stores[0]->Look().ok());
  std::thread ending([&] { stores[1].reset(); });
  const Status status = Wait(*stores[0], kLong);
  ending.join();
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  const Status explained = stores[0]->Explain(status);
  EXPECT_THAT(explained.message(), HasSubstr("the first to fail was rank 1: its process exited"));
  EXPECT_FALSE(stores[0]->Look().ok());
}

TEST_F(StartingStoreTest, AStartIsCalledOffForThoseWhoWaitAndThoseWhoComeLater) {
  const auto join = [&](int rank) {
    auto client = StoreClient::Connect("127.0.0.1", server_->port(), "secret", kLong);
    return StartingStore::Join(client.TakeValue(), {"view-3-", rank, 3, "label", "card"},
                               Deadline::After(kLong))
        .status();
  };
  Status early;
  std::thread waiting([&] { early = join(0); });
  const std::string why = "rank 2 ended";
  auto driver = StoreClient::Connect("127.0.0.1", server_->port(), "secret", kLong);
  ASSERT_TRUE((*driver)->Set(FailedKey("view-3-"), std::as_bytes(std::span(why))).ok());
  waiting.join();
  EXPECT_THAT(early.message(), HasSubstr("the first to fail was rank 2 ended"));
  EXPECT_THAT(join(1).message(), HasSubstr("the first to fail was rank 2 ended"));
}

TEST_F(StartingStoreTest, TheFirstReasonIsToldToAll) {
  auto stores = Job("init");
  const Status own = stores[1]->Explain(Status(StatusCode::kSystem, "no memory"));
  EXPECT_EQ(own.message(), "no memory");
  stores[1].reset();  // what it has published stays
  const Status later = stores[0]->Explain(Wait(*stores[0], kLong));
  EXPECT_THAT(later.message(), HasSubstr("the first to fail was rank 1: no memory"));
}

TEST_F(StartingStoreTest, AnotherStartOfTheJobIsNotConcerned) {
  const auto earlier = Job("init");
  const auto other = Job("other");
  const auto stores = Job("init");
  (void)earlier[1]->Explain(Status(StatusCode::kSystem, "no memory"));
  (void)other[1]->Explain(Status(StatusCode::kSystem, "no memory"));
  EXPECT_TRUE(stores[0]->Look().ok());
  const Status status = Wait(*stores[0], 0.3);
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_EQ(status.detail().ranks, std::vector<int>{1});
}

}  // namespace
}  // namespace horoscale
