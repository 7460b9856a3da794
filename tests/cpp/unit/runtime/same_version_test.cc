// Ranks of different versions: both sides say which ranks, and which versions.
#include "runtime/same_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "rendezvous/store_server.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;

constexpr double kLong = 30;  // seconds; a test that waits so long has failed
constexpr char kWhat[] =
    "rank 1 speaks version 5 of horoscale's protocol between ranks, rank 0 version 4: install the "
    "same horoscale for all ranks";

class SameVersionTest : public ::testing::Test {
 protected:
  std::unique_ptr<StartingStore> Rank(int rank) {
    auto client = StoreClient::Connect("127.0.0.1", server_->port(), kSecret, kLong);
    return StartingStore::Create(client.TakeValue(), "init0/", rank, deadline_).TakeValue();
  }
  static StoreServerOptions Options() {
    StoreServerOptions options;
    options.secret = kSecret;
    return options;
  }

  static constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";
  const Deadline deadline_ = Deadline::After(kLong);
  std::unique_ptr<StoreServer> server_ = StoreServer::Start(Options()).TakeValue();
};

TEST_F(SameVersionTest, RanksOfOneVersionMeet) {
  const auto first = Rank(0);
  const auto second = Rank(1);
  EXPECT_TRUE(CheckSameVersion(*first, "init0/", 0, deadline_).ok());
  EXPECT_TRUE(CheckSameVersion(*second, "init0/", 1, deadline_).ok());
}

TEST_F(SameVersionTest, ARankOfAnotherVersionAndThoseThatWaitForItSayTheSame) {
  const auto first = Rank(0);
  const auto second = Rank(1);
  Status of_second;
  std::thread starts([&] { of_second = CheckSameVersion(*second, "init0/", 1, deadline_, 5); });
  EXPECT_TRUE(CheckSameVersion(*first, "init0/", 0, deadline_, 4).ok());
  const Status of_first = first->Explain(first->Get("what rank 1 would say", kLong).status());
  starts.join();
  EXPECT_EQ(of_second.code(), StatusCode::kProtocol);
  EXPECT_EQ(of_second.message(), kWhat);
  EXPECT_THAT(of_first.message(), HasSubstr(kWhat));
}

TEST(SameVersion, OverMpiAllRanksFindTheSame) {
  EXPECT_TRUE(CheckSameVersion(std::vector<uint32_t>{4, 4, 4}).ok());
  EXPECT_EQ(CheckSameVersion(std::vector<uint32_t>{4, 5}).message(), kWhat);
  const Status status = CheckSameVersion(std::vector<uint32_t>{4, 3, 4, 3});
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
  EXPECT_THAT(status.message(), HasSubstr("ranks 1 and 3 speak version 3"));
  EXPECT_EQ(status.detail().ranks, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace horoscale
