// How ranks on several hosts find each other and make their first links, in the presence of
// strangers.

#include "transport/tcp/tcp_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/tcp_socket.h"
#include "rendezvous/address.h"
#include "rendezvous/memory_store.h"
#include "support/overheard_store.h"
#include "support/start_together.h"

namespace horoscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kPatience = 20;

TcpMeshConfig MeshConfigOf(int rank, int size) {
  TcpMeshConfig config;
  config.size = size;
  for (int other = 0; other < size; ++other) {
    if (other != rank) config.peers.push_back(other);
  }
  config.at_once = config.peers;
  config.terms.rank = rank;
  config.terms.key_prefix = "7/";
  config.terms.secret = "secret";
  config.terms.data_streams = 2;
  config.seconds = kPatience;
  return config;
}

// Starts all ranks at once; returns the status of each.
std::vector<Status> StartAll(Store& store, const std::vector<TcpMeshConfig>& configs) {
  return StartTogether(configs.size(), [&](size_t i) { return ConnectTcpMesh(configs[i], store); });
}

TEST(TcpMeshTest, ManyRanksFindEachOther) {
  MemoryStore store;
  std::vector<TcpMeshConfig> configs;
  for (int rank = 0; rank < 8; ++rank) configs.push_back(MeshConfigOf(rank, 8));
  for (const Status& status : StartAll(store, configs)) EXPECT_TRUE(status.ok());
}

TEST(TcpMeshTest, RanksThatDoNotConnectAreNamed) {
  MemoryStore store;
  TcpMeshConfig config = MeshConfigOf(0, 3);
  config.seconds = 0.1;
  const Status status = StartAll(store, {config})[0];
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.detail().ranks, ElementsAre(1, 2)) << status.message();
}

TEST(TcpMeshTest, RanksWithOtherNumbersOfStreamsSaySo) {
  MemoryStore store;
  std::vector<TcpMeshConfig> configs = {MeshConfigOf(0, 2), MeshConfigOf(1, 2)};
  configs[1].terms.data_streams = 3;
  EXPECT_THAT(StartAll(store, configs)[0].message(),
              HasSubstr("rank 1 has 3 TCP streams for data, rank 0 has 2"));
}

TEST(TcpMeshTest, AWrongSecretIsRefused) {
  MemoryStore store;
  std::vector<TcpMeshConfig> configs = {MeshConfigOf(0, 2), MeshConfigOf(1, 2)};
  configs[0].seconds = 0.5;
  configs[1].terms.secret = "guess";
  const std::vector<Status> statuses = StartAll(store, configs);
  EXPECT_EQ(statuses[0].code(), StatusCode::kTimeout) << "a stranger is no reason to give up";
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_THAT(statuses[1].message(), HasSubstr("rank 1 can't reach rank 0"));
}

// Acts as rank 1 towards a rank 0 that publishes this address.
Status ConnectToPlace(const std::string& place, const std::function<void(TcpMeshConfig&)>& change) {
  MemoryStore store;
  TcpMeshConfig config = MeshConfigOf(1, 2);
  change(config);
  std::thread zero([&] {
    GatherRequest request;
    request.key = "7/tcp";
    request.place = 0;
    request.count = 2;
    request.value = std::as_bytes(std::span(place));
    EXPECT_TRUE(store.Gather(request, kPatience).ok());
  });
  const Status status = ConnectTcpMesh(config, store).status();
  zero.join();
  return status;
}

TEST(TcpMeshTest, WhoGaveUpForAnotherIsNotBlamed) {
  const Status status = ConnectToPlace("[127.0.0.1]:1\n", [](TcpMeshConfig& config) {
    config.look = [] { return Status(StatusCode::kSystem, "another rank failed to start"); };
  });
  EXPECT_EQ(status.message(), "another rank failed to start");
}

TEST(TcpMeshTest, ACallWithoutAnAnswerSaysWhereItWasTried) {
  const TcpListener silent = TcpListener::Create("127.0.0.1", 0).TakeValue();
  const std::string place = "127.0.0.1:" + std::to_string(silent.port());
  const Status status =
      ConnectToPlace(place + "\n", [](TcpMeshConfig& config) { config.seconds = 0.3; });
  EXPECT_THAT(status.message(), HasSubstr("rank 1 can't reach rank 0"));
  EXPECT_THAT(status.message(), HasSubstr("no answer from " + place));
  EXPECT_THAT(status.detail().ranks, ElementsAre(0));
}

// A process in a debugger does not read, but its kernel still acknowledges.
TEST(TcpMeshTest, ARankThatDoesNotReadForLongIsNotLost) {
  constexpr double kSilenceSeconds = 1;
  MemoryStore store;
  std::vector<TcpMesh> meshes(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      TcpMeshConfig config = MeshConfigOf(rank, 2);
      config.terms.silence_seconds = kSilenceSeconds;
      meshes[static_cast<size_t>(rank)] = ConnectTcpMesh(config, store).TakeValue();
    });
  }
  for (std::thread& thread : threads) thread.join();
  ByteStream& data = meshes[0].links.at(1)[1];
  const std::vector<std::byte> bytes(1 << 20, std::byte{1});
  size_t sent = 0;
  // Sends more than the sockets hold, for longer than the silence timeout.
  for (const Deadline end = Deadline::After(3 * kSilenceSeconds); !end.Passed();) {
    const Result<size_t> some = data.SendSome(bytes);
    ASSERT_TRUE(some.ok()) << some.status().message();
    sent += *some;
    if (*some == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::vector<std::byte> received(sent);
  EXPECT_TRUE(meshes[1].links.at(0)[1].ReceiveAll(received, Deadline::After(kPatience)).ok());
}

TEST(TcpMeshTest, AnInterfaceThatIsNotThereIsNamed) {
  MemoryStore store;
  TcpMeshConfig config = MeshConfigOf(0, 2);
  config.door.interfaces = {"nowhere0"};
  EXPECT_THAT(StartAll(store, {config})[0].message(), HasSubstr("nowhere0"));
}

// The address on which a rank says that it listens.
std::vector<HostPort> PlacesIn(const std::string& text) {
  std::vector<HostPort> places;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    places.push_back(ParseHostPort(line).TakeValue());
  }
  return places;
}

// The address on which rank 0 of two listens, if they start with these settings.
std::vector<HostPort> PlacesOfRankZero(const std::function<void(TcpMeshConfig&)>& set) {
  MemoryStore memory;
  OverheardStore store(memory, "7/tcp");
  auto published = store.value();
  std::vector<TcpMeshConfig> configs = {MeshConfigOf(0, 2), MeshConfigOf(1, 2)};
  for (TcpMeshConfig& config : configs) set(config);
  for (const Status& status : StartAll(store, configs)) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return PlacesIn(published.get());
}

// While a rank waits for the other one, tries to connect to its listener at an address that it may
// not listen on: one of the machine's own addresses, or another loopback address.
bool IsReachedAt(const std::string& address, const std::function<void(TcpMeshConfig&)>& set) {
  MemoryStore memory;
  OverheardStore store(memory, "7/tcp");
  auto published = store.value();
  std::vector<TcpMeshConfig> configs = {MeshConfigOf(0, 2), MeshConfigOf(1, 2)};
  for (TcpMeshConfig& config : configs) set(config);
  std::thread first([&] { EXPECT_TRUE(StartAll(store, {configs[0]})[0].ok()); });
  const uint16_t port = PlacesIn(published.get()).at(0).port;
  const bool reached = ConnectTcp(address, port, Deadline::After(kPatience)).ok();
  EXPECT_TRUE(StartAll(store, {configs[1]})[0].ok());
  first.join();
  return reached;
}

TEST(TcpMeshTest, ListensOnLoopbackAloneWhereThatIsEnough) {
  const auto loopback_only = [](TcpMeshConfig& config) { config.door.loopback_only = true; };
  for (const HostPort& place : PlacesOfRankZero(loopback_only)) {
    EXPECT_TRUE(IsLoopbackAddress(place.host)) << place.host;
  }
  const auto everywhere = [](TcpMeshConfig&) {};
  // Every address in 127.0.0.0/8 refers to this machine, whatever other interfaces it has.
  EXPECT_FALSE(IsReachedAt("127.0.0.2", loopback_only));
  EXPECT_TRUE(IsReachedAt("127.0.0.2", everywhere));
}

TEST(TcpMeshTest, ListensOnTheChosenInterfaceAlone) {
  const auto chosen = [](TcpMeshConfig& config) { config.door.interfaces = {"lo"}; };
  for (const HostPort& place : PlacesOfRankZero(chosen)) {
    EXPECT_TRUE(IsLoopbackAddress(place.host)) << place.host;
  }
  EXPECT_FALSE(IsReachedAt("127.0.0.2", chosen));
}

// The first address of rank 0 belongs to a stranger that never accepts its connections.
TEST(TcpMeshTest, AStrangerThatIsSilentAtOneAddressDoesNotTakeAllTime) {
  class Misled final : public Store {
   public:
    Misled(Store& store, uint16_t port) : store_(store), port_(port) {}
    Status Set(std::string_view key, std::span<const std::byte> value) override {
      return store_.Set(key, value);
    }
    Result<std::vector<std::byte>> Get(std::string_view key, double seconds) override {
      return store_.Get(key, seconds);
    }
    Result<Gathered> Gather(const GatherRequest& request, double seconds) override {
      auto gathered = store_.Gather(request, seconds);
      const std::string first = "[127.0.0.1]:" + std::to_string(port_) + "\n";
      const auto bytes = std::as_bytes(std::span(first));
      if (gathered.ok()) {
        std::vector<std::byte>& value = gathered->values.at(0);
        value.insert(value.begin(), bytes.begin(), bytes.end());
      }
      return gathered;
    }

   private:
    Store& store_;
    const uint16_t port_;
  };
  auto stranger = TcpListener::Create("127.0.0.1", 0).TakeValue();  // the kernel completes the
                                                                    // connections
  MemoryStore memory;
  Misled store(memory, stranger.port());
  for (const Status& status : StartAll(store, {MeshConfigOf(0, 2), MeshConfigOf(1, 2)})) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// Connects to rank 0 in every way open to a stranger, and stays.
TEST(TcpMeshTest, StrangersDoNoHarm) {
  MemoryStore memory;
  OverheardStore store(memory, "7/tcp");
  auto published = store.value();
  std::vector<ByteStream> strangers;
  const auto intrude = [&] {
    const uint16_t port = PlacesIn(published.get()).at(0).port;
    const Deadline deadline = Deadline::After(kPatience);
    for (int i = 0; i < 3; ++i) {
      strangers.push_back(ConnectTcp("127.0.0.1", port, deadline).TakeValue());  // sends nothing
      ByteStream garbage = ConnectTcp("127.0.0.1", port, deadline).TakeValue();
      ASSERT_TRUE(garbage.SendAll(std::vector<std::byte>(1000, std::byte{0x5a}), deadline).ok());
      strangers.push_back(std::move(garbage));
      ConnectTcp("127.0.0.1", port, deadline).TakeValue();  // and leaves
    }
  };
  std::thread intruder(intrude);
  std::vector<Status> early;
  std::thread first([&] { early = StartAll(store, {MeshConfigOf(0, 2)}); });
  intruder.join();
  const std::vector<Status> late = StartAll(store, {MeshConfigOf(1, 2)});
  first.join();
  EXPECT_TRUE(early[0].ok()) << early[0].message();
  EXPECT_TRUE(late[0].ok()) << late[0].message();
}

}  // namespace
}  // namespace horoscale
