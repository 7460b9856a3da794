// Several hosts, simulated in this process.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "conformance/transport_world.h"
#include "rendezvous/memory_store.h"
#include "transport/hosts/hosts_transport.h"

namespace horoscale {

class HostsWorld final : public TransportWorld {
 public:
  struct Hosts {
    int ranks = 1;  // per host
    uint32_t data_streams = 1;
    bool encrypt = false;
    double silence_seconds = 30;
  };
  HostsWorld(int size, const Hosts& hosts, const MemoryOptions& options);
  Transport& At(int rank) override { return *endpoints_.at(static_cast<size_t>(rank)); }
  void Lose(int rank) override { endpoints_.at(static_cast<size_t>(rank)).reset(); }

  const std::vector<uint32_t>& hosts() const { return hosts_; }
  // The part of a rank's transport that connects it to other hosts.
  TcpTransport& Far(int rank) { return *far_.at(static_cast<size_t>(rank)); }

 private:
  void Start(int rank, const Hosts& hosts, const MemoryOptions& options);

  MemoryStore store_;
  std::vector<uint32_t> hosts_;  // by rank
  std::vector<std::unique_ptr<Transport>> endpoints_;
  std::vector<TcpTransport*> far_;
};

}  // namespace horoscale
