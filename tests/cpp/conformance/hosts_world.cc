#include "conformance/hosts_world.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "transport/tcp/backbone.h"
#include "transport/tcp/tcp_mesh.h"

namespace horoscale {

HostsWorld::HostsWorld(int size, const Hosts& hosts, const MemoryOptions& options)
    : endpoints_(static_cast<size_t>(size)), far_(static_cast<size_t>(size)) {
  for (int rank = 0; rank < size; ++rank) {
    hosts_.push_back(static_cast<uint32_t>(rank / hosts.ranks));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([=, this, &hosts, &options] { Start(rank, hosts, options); });
  }
  for (std::thread& thread : threads) thread.join();
}

void HostsWorld::Start(int rank, const Hosts& hosts, const MemoryOptions& options) {
  const int size = static_cast<int>(hosts_.size());
  ShmConfig shm = TestShmConfig(rank, size, options);
  shm.mesh.ranks.clear();
  TcpMeshConfig tcp;
  tcp.size = size;
  tcp.terms.rank = rank;
  tcp.terms.key_prefix = "test/";
  tcp.terms.secret = "secret";
  tcp.terms.data_streams = hosts.data_streams;
  tcp.terms.encrypt = hosts.encrypt;
  tcp.terms.silence_seconds = hosts.silence_seconds;
  tcp.at_once = BackbonePeers(rank, hosts_);
  for (int other = 0; other < size; ++other) {
    const bool is_near = hosts_[static_cast<size_t>(other)] == hosts_[static_cast<size_t>(rank)];
    (is_near ? shm.mesh.ranks : tcp.peers).push_back(other);
  }
  Result<std::unique_ptr<ShmTransport>> local = ShmTransport::Create(shm, store_);
  ASSERT_TRUE(local.ok()) << local.status().message();
  Result<TcpMesh> mesh = ConnectTcpMesh(tcp, store_);
  ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  auto remote = TcpTransport::Create(rank, mesh.TakeValue(), tcp.terms.silence_seconds).TakeValue();
  far_[static_cast<size_t>(rank)] = remote.get();
  endpoints_[static_cast<size_t>(rank)] =
      HostsTransport::Create(local.TakeValue(), std::move(remote), hosts_).TakeValue();
}

}  // namespace horoscale
