#include "conformance/transport_world.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "platform/tls_library.h"
#include "rendezvous/memory_store.h"
#include "transport/hosts/hosts_transport.h"
#include "transport/inproc/inproc_fabric.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_mesh.h"

#if defined(__SANITIZE_THREAD__)
#define HOROSCALE_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOROSCALE_TSAN
#endif
#endif

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

// Hosts of so many ranks each, played by this one.
template <int kRanksOfHost, uint32_t kDataStreams, bool kEncrypt = false>
class HostsWorld : public TransportWorld {
 public:
  HostsWorld(int size, const MemoryOptions& options) : endpoints_(static_cast<size_t>(size)) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([this, rank, size, &options] { Start(rank, size, options); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Transport& At(int rank) override { return *endpoints_.at(static_cast<size_t>(rank)); }
  void Lose(int rank) override { endpoints_.at(static_cast<size_t>(rank)).reset(); }

 private:
  void Start(int rank, int size, const MemoryOptions& options) {
    ShmConfig shm = TestShmConfig(rank, size, options);
    shm.mesh.ranks.clear();
    TcpMeshConfig tcp;
    tcp.rank = rank;
    tcp.size = size;
    tcp.key_prefix = "test/";
    tcp.secret = "secret";
    tcp.data_streams = kDataStreams;
    tcp.encrypt = kEncrypt;
    std::vector<uint32_t> hosts;
    for (int other = 0; other < size; ++other) {
      hosts.push_back(static_cast<uint32_t>(other / kRanksOfHost));
      (other / kRanksOfHost == rank / kRanksOfHost ? shm.mesh.ranks : tcp.peers).push_back(other);
    }
    Result<std::unique_ptr<ShmTransport>> local = ShmTransport::Create(shm, store_);
    ASSERT_TRUE(local.ok()) << local.status().message();
    Result<std::map<int, TcpStreams>> streams = ConnectTcpMesh(tcp, store_);
    ASSERT_TRUE(streams.ok()) << streams.status().message();
    auto remote = TcpTransport::Create(rank, streams.TakeValue(), tcp.silence_seconds).TakeValue();
    endpoints_[static_cast<size_t>(rank)] =
        HostsTransport::Create(local.TakeValue(), std::move(remote), hosts).TakeValue();
  }

  MemoryStore store_;
  std::vector<std::unique_ptr<Transport>> endpoints_;
};

template <typename World>
TransportKind Kind(std::string name, bool has_common_memory = true) {
  return {std::move(name), has_common_memory, [](int size, const MemoryOptions& options) {
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
// Ranks of one process see shared memory at several addresses, which the thread sanitizer can't
// follow.
#ifndef HOROSCALE_TSAN
  kinds.push_back(Kind<ShmWorld>("shm"));
#endif
  return kinds;
}

std::vector<TransportKind> AllTransportKinds() {
  std::vector<TransportKind> kinds = MemoryTransportKinds();
  kinds.push_back(Kind<HostsWorld<1, 1>>("tcp", false));
  kinds.push_back(Kind<HostsWorld<1, 3>>("tcp_3_streams", false));
  if (TlsLibrary::Open().ok()) {
    kinds.push_back(Kind<HostsWorld<1, 2, true>>("tcp_encrypted", false));
  }
#ifndef HOROSCALE_TSAN
  kinds.push_back(Kind<HostsWorld<2, 2>>("hosts"));
#endif
  return kinds;
}

}  // namespace horoscale
