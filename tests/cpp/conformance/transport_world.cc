#include "conformance/transport_world.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "conformance/hosts_world.h"
#include "platform/tls_library.h"
#include "rendezvous/memory_store.h"
#include "transport/inproc/inproc_fabric.h"
#include "transport/shm/shm_transport.h"

namespace horoscale {
namespace {

class InprocWorld : public TransportWorld {
 public:
  InprocWorld(int size, const MemoryOptions& options)
      : fabric_(InprocFabric::Create(size, options).TakeValue()) {
    for (int rank = 0; rank < size; ++rank) endpoints_.push_back(fabric_->Endpoint(rank));
  }
  Transport& At(int rank) override { return *endpoints_.at(static_cast<size_t>(rank)); }
  void Lose(int rank) override { fabric_->Kill(rank); }

 private:
  std::shared_ptr<InprocFabric> fabric_;
  std::vector<std::unique_ptr<Transport>> endpoints_;
};

class ShmWorld : public TransportWorld {
 public:
  ShmWorld(int size, const MemoryOptions& options) : endpoints_(static_cast<size_t>(size)) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([this, rank, size, &options] {
        Result<std::unique_ptr<ShmTransport>> made =
            ShmTransport::Create(TestShmConfig(rank, size, options), store_);
        ASSERT_TRUE(made.ok()) << made.status().message();
        endpoints_[static_cast<size_t>(rank)] = made.TakeValue();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Transport& At(int rank) override { return *endpoints_.at(static_cast<size_t>(rank)); }
  void Lose(int rank) override { endpoints_.at(static_cast<size_t>(rank)).reset(); }

 private:
  MemoryStore store_;
  std::vector<std::unique_ptr<Transport>> endpoints_;
};

template <typename World>
TransportKind Kind(std::string name) {
  return {std::move(name), true, [](int size, const MemoryOptions& options) {
            return std::make_unique<World>(size, options);
          }};
}

}  // namespace

ShmConfig TestShmConfig(int rank, int size, const MemoryOptions& options) {
  ShmConfig config;
  config.rank = rank;
  config.size = size;
  config.memory = options;
  config.arena_bytes = size_t{256} << 20;
  config.mesh = {.ranks = {}, .key_prefix = "test/", .secret = "secret", .seconds = 30};
  for (int other = 0; other < size; ++other) config.mesh.ranks.push_back(other);
  return config;
}

std::vector<TransportKind> MemoryTransportKinds() {
  std::vector<TransportKind> kinds = {Kind<InprocWorld>("inproc")};
#ifndef HOROSCALE_TSAN
  kinds.push_back(Kind<ShmWorld>("shm"));
#endif
  return kinds;
}

std::vector<TransportKind> AllTransportKinds() {
  std::vector<TransportKind> kinds = MemoryTransportKinds();
  const auto add_hosts = [&](std::string name, const HostsWorld::Hosts& hosts) {
    kinds.push_back(
        {std::move(name), hosts.ranks > 1, [hosts](int size, const MemoryOptions& options) {
           return std::make_unique<HostsWorld>(size, hosts, options);
         }});
  };
  add_hosts("tcp", {.ranks = 1, .data_streams = 1});
  add_hosts("tcp_3_streams", {.ranks = 1, .data_streams = 3});
  if (TlsLibrary::Open().ok()) {
    add_hosts("tcp_encrypted", {.ranks = 1, .data_streams = 2, .encrypt = true});
  }
#ifndef HOROSCALE_TSAN
  add_hosts("hosts", {.ranks = 2, .data_streams = 2});
#endif
  return kinds;
}

}  // namespace horoscale
