// Topology: this rank's position among all ranks and among those of its host.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace horoscale {

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int cross_rank = 0;  // among the ranks with this local rank, one per host
  int cross_size = 1;
  bool homogeneous = true;  // every host has the same number of ranks
};

// The number of each rank's host, in the order of the hosts' lowest ranks.
std::vector<uint32_t> NumberHosts(std::span<const std::string> hosts);

// hosts[r] identifies the host of rank r. Hosts are ordered by their lowest rank.
Topology TopologyOf(int rank, std::span<const std::string> hosts);

}  // namespace horoscale
