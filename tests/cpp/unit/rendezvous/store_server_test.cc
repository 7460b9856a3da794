// The store as ranks use it. store_strangers_test.cc tests it against strangers.
#include "rendezvous/store_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "platform/clock.h"
#include "platform/tcp_socket.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_protocol.h"

namespace horoscale {
namespace {

constexpr double kLong = 30;  // seconds; a test that waits this long has failed

std::vector<std::byte> Bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

class StoreServerTest : public ::testing::Test {
 protected:
  StoreServerTest() : server_(Start({})) {}

  static std::unique_ptr<StoreServer> Start(StoreServerOptions options) {
    options.secret = "secret";
    Result<std::unique_ptr<StoreServer>> server = StoreServer::Start(std::move(options));
    EXPECT_TRUE(server.ok()) << server.status().message();
    return server.TakeValue();
  }

  std::unique_ptr<StoreClient> Connect() {
    auto client = StoreClient::Connect("127.0.0.1", server_->port(), "secret", kLong);
    EXPECT_TRUE(client.ok()) << client.status().message();
    return client.TakeValue();
  }

  std::unique_ptr<StoreServer> server_;
};

TEST_F(StoreServerTest, OneSetsAndAnotherGets) {
  const auto a = Connect();
  const auto b = Connect();
  ASSERT_TRUE(a->Set("k", Bytes("v")).ok());
  const Result<std::vector<std::byte>> value = b->Get("k", 0);
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(*value, Bytes("v"));
}

TEST_F(StoreServerTest, GetWaitsUntilTheKeyComes) {
  const auto a = Connect();
  std::optional<Result<std::vector<std::byte>>> value;
  std::thread getter([&] { value.emplace(Connect()->Get("k", kLong)); });
  ASSERT_TRUE(a->Set("other", Bytes("x")).ok());
  ASSERT_TRUE(a->Set("k", Bytes("v")).ok());
  getter.join();
  ASSERT_TRUE(value->ok()) << value->status().message();
  EXPECT_EQ(**value, Bytes("v"));
}

TEST_F(StoreServerTest, GetGivesUpAndTheConnectionGoesOn) {
  const auto client = Connect();
  const double start = MonotonicSeconds();
  const Result<std::vector<std::byte>> value = client->Get("rank 3", 0.05);
  EXPECT_GE(MonotonicSeconds() - start, 0.05);
  EXPECT_EQ(value.status().code(), StatusCode::kTimeout);
  EXPECT_THAT(value.status().message(), testing::HasSubstr("rank 3"));
  EXPECT_TRUE(client->Set("rank 3", Bytes("v")).ok());
  EXPECT_TRUE(client->Get("rank 3", 0).ok());
}

TEST_F(StoreServerTest, AServerThatIsSilentDoesNotSayThatAKeyIsAbsent) {
  const auto client = Connect();
  client->EndBy(Deadline::After(0.05));  // before its answer
  for (const double seconds : {kLong, 0.0}) {
    const Status status = client->Get("k", seconds).status();
    EXPECT_EQ(status.code(), StatusCode::kSystem);
    EXPECT_THAT(status.message(), testing::HasSubstr("the job's store"));
  }
}

TEST_F(StoreServerTest, AKeyIsSetOnceAndTheErrorComesBack) {
  const auto client = Connect();
  ASSERT_TRUE(client->Set("k", Bytes("v")).ok());
  EXPECT_TRUE(client->Set("k", Bytes("v")).ok());
  const Status status = client->Set("k", Bytes("w"));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("'k'"));
}

TEST_F(StoreServerTest, AGatheringGivesEachTheValuesOfItsLabel) {
  std::vector<Result<Gathered>> results(3, Status::Internal("did not run"));
  std::vector<std::thread> ranks;
  for (uint32_t place = 0; place < 3; ++place) {
    ranks.emplace_back([&, place] {
      const auto value = Bytes(std::to_string(place));
      GatherRequest request = {"g", place, 3, value};
      request.label = place == 1 ? "b" : "a";
      results[place] = Connect()->Gather(request, kLong);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  using Values = std::map<uint32_t, std::vector<std::byte>>;
  EXPECT_EQ(results[0]->values, (Values{{0, Bytes("0")}, {2, Bytes("2")}}));
  EXPECT_EQ(results[1]->values, (Values{{1, Bytes("1")}}));
  EXPECT_EQ(results[2]->values, results[0]->values);
}

TEST_F(StoreServerTest, AGatheringThatIsNotCompleteNamesWhoIsMissing) {
  const auto client = Connect();
  const auto gathered = client->Gather({"g", 1, 4, {}}, 0.05);
  EXPECT_EQ(gathered.status().code(), StatusCode::kTimeout);
  EXPECT_EQ(gathered.status().detail().ranks, (std::vector{0, 2, 3}));
  EXPECT_TRUE(client->Set("k", {}).ok()) << "the connection goes on";
}

TEST_F(StoreServerTest, AGatheringIsGivenUpWhenItsKeyIsSet) {
  Status status;
  std::thread waiting([&] {
    GatherRequest request = {"g", 0, 2, {}};
    request.unless = "end";
    status = Connect()->Gather(request, kLong).status();
    EXPECT_EQ(Connect()->Gather(request, kLong).status().code(), StatusCode::kRankFailed);
  });
  EXPECT_TRUE(Connect()->Set("end", Bytes("my words")).ok());
  waiting.join();
  EXPECT_EQ(status.code(), StatusCode::kRankFailed);
  EXPECT_EQ(status.message(), "my words");
}

class JoinTest : public StoreServerTest {
 protected:
  static GatherRequest Join(uint32_t place) {
    GatherRequest request = {"job", place, 2, {}};
    request.will = "it ended";
    return request;
  }
  // Two clients in one round.
  std::vector<std::unique_ptr<StoreClient>> Both(uint64_t* round) {
    std::vector<std::unique_ptr<StoreClient>> clients;
    clients.push_back(Connect());
    clients.push_back(Connect());
    std::thread other([&] { EXPECT_TRUE(clients[1]->Gather(Join(1), kLong).ok()); });
    const auto joined = clients[0]->Gather(Join(0), kLong);
    other.join();
    EXPECT_TRUE(joined.ok()) << joined.status().message();
    *round = joined->round;
    return clients;
  }
};

TEST_F(JoinTest, EachRoundHasANumberOfItsOwn) {
  for (uint64_t expected = 0; expected < 3; ++expected) {
    uint64_t round = 99;
    (void)Both(&round);
    EXPECT_EQ(round, expected);
  }
}

TEST_F(JoinTest, TheWillIsSetWhenTheConnectionEndsAndWakesWhoWaits) {
  uint64_t round = 99;
  auto clients = Both(&round);
  const std::string key = FailedKey(RoundPrefix("job", round));
  const auto other = Connect();
  EXPECT_EQ(other->Get(key, 0).status().code(), StatusCode::kTimeout) << "they live still";
  std::thread ending([&] { clients[1].reset(); });
  const Result<std::vector<std::byte>> value = other->Get(key, kLong);
  ending.join();
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(*value, Bytes("it ended"));
}

TEST_F(JoinTest, AWillChangesNoValue) {
  uint64_t round = 99;
  auto clients = Both(&round);
  const std::string key = FailedKey(RoundPrefix("job", round));
  ASSERT_TRUE(clients[1]->Set(key, Bytes("my own words")).ok());
  clients.clear();
  EXPECT_EQ(*Connect()->Get(key, kLong), Bytes("my own words"));
}

// Of three parties, the second joins and ends before the others join.
TEST_F(JoinTest, NobodyWaitsForOneWhoseProcessHasEnded) {
  const auto join = [](uint32_t place) {
    GatherRequest request = Join(place);
    request.count = 3;
    return request;
  };
  auto gone = Connect();
  gone->EndBy(Deadline::After(0.05));  // nobody else has joined by then
  EXPECT_FALSE(gone->Gather(join(1), kLong).ok());
  gone.reset();
  for (const uint32_t place : {0u, 2u}) {
    const Status status = Connect()->Gather(join(place), kLong).status();
    EXPECT_EQ(status.code(), StatusCode::kRankFailed);
    EXPECT_EQ(status.message(), "it ended");
  }
}

TEST_F(StoreServerTest, SizesUpToTheBoundsWorkAndBeyondFailLocally) {
  const auto client = Connect();
  const std::string key(kStoreMaxKeyBytes, 'k');
  std::vector<std::byte> value(kStoreMaxValueBytes, std::byte{7});
  ASSERT_TRUE(client->Set(key, value).ok());
  EXPECT_EQ(*client->Get(key, 0), value);
  ASSERT_TRUE(client->Set("empty", {}).ok());
  EXPECT_TRUE(client->Get("empty", 0)->empty());
  value.push_back({});
  EXPECT_EQ(client->Set("k", value).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client->Set("", {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client->Get(key + "k", 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(client->Get(key, 0).ok()) << "the connection is unharmed";
}

TEST_F(StoreServerTest, AFullStoreSaysSo) {
  server_ = Start({.capacity_bytes = 1000});
  const auto client = Connect();
  EXPECT_TRUE(client->Set("a", std::vector<std::byte>(500)).ok());
  const Status status = client->Set("b", std::vector<std::byte>(500));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("full"));
}

TEST_F(StoreServerTest, SixtyFourClientsAtOnce) {
  constexpr int kClients = 64;
  std::atomic<int> failures{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kClients; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto client = Connect();
      const std::string own = std::to_string(rank);
      if (!client->Set("rank " + own, Bytes("address of " + own)).ok()) ++failures;
      for (int peer = 0; peer < kClients; ++peer) {
        const std::string other = std::to_string(peer);
        const auto value = client->Get("rank " + other, kLong);
        if (!value.ok() || *value != Bytes("address of " + other)) ++failures;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST_F(StoreServerTest, ThreadsMayShareAClient) {
  const auto client = Connect();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i);
        if (!client->Set(key, Bytes(key)).ok() || *client->Get(key, 0) != Bytes(key)) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST_F(StoreServerTest, StopEndsAWaitingGetAndIsFinalForTheClient) {
  const auto client = Connect();
  Status status;
  std::thread getter([&] { status = client->Get("never", 600).status(); });
  const double start = MonotonicSeconds();
  server_->Stop();
  getter.join();
  EXPECT_LT(MonotonicSeconds() - start, kLong);
  EXPECT_EQ(status.code(), StatusCode::kSystem) << status.message();
  EXPECT_EQ(client->Set("k", {}).code(), StatusCode::kSystem);
  server_->Stop();
  EXPECT_FALSE(ConnectTcp("127.0.0.1", server_->port(), Deadline::After(1)).ok());
}

TEST_F(StoreServerTest, AClientWaitsForAServerThatComesLater) {
  // A socket that is bound but doesn't listen reserves the port for the server, which may bind it
  // too.
  const UniqueFd holder(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(holder.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(holder.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &length);
  const uint16_t port = ntohs(address.sin_port);

  Status status = Status::Internal("did not run");
  std::thread client(
      [&] { status = StoreClient::Connect("127.0.0.1", port, "secret", kLong).status(); });
  server_ = Start({.port = port});
  client.join();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(StoreServerTest, AWrongSecretFailsAtOnceAndSaysWhatToDo) {
  const double start = MonotonicSeconds();
  const auto client = StoreClient::Connect("127.0.0.1", server_->port(), "wrong", 600);
  EXPECT_LT(MonotonicSeconds() - start, kLong);
  EXPECT_EQ(client.status().code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(client.status().message(), testing::HasSubstr("HOROSCALE_SECRET"));
  EXPECT_THAT(client.status().message(), testing::HasSubstr(std::to_string(server_->port())));
}

TEST_F(StoreServerTest, APortInUseIsAnErrorOfStart) {
  const auto second = StoreServer::Start({.port = server_->port(), .secret = "s"});
  EXPECT_EQ(second.status().code(), StatusCode::kSystem);
}

}  // namespace
}  // namespace horoscale
