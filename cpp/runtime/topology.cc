#include "runtime/topology.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace horoscale {

std::vector<uint32_t> NumberHosts(std::span<const std::string> hosts) {
  std::map<std::string_view, uint32_t> numbers;
  std::vector<uint32_t> result;
  for (const std::string& host : hosts) {
    const auto next = static_cast<uint32_t>(numbers.size());
    result.push_back(numbers.try_emplace(host, next).first->second);
  }
  return result;
}

Topology TopologyOf(int rank, std::span<const std::string> hosts) {
  std::map<std::string_view, std::vector<int>> ranks_of_host;
  std::vector<std::string_view> order;
  for (size_t r = 0; r < hosts.size(); ++r) {
    auto& ranks = ranks_of_host[hosts[r]];
    if (ranks.empty()) order.push_back(hosts[r]);
    ranks.push_back(static_cast<int>(r));
  }
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(hosts.size());
  const auto& own = ranks_of_host[hosts[static_cast<size_t>(rank)]];
  topology.local_rank = static_cast<int>(std::find(own.begin(), own.end(), rank) - own.begin());
  topology.local_size = static_cast<int>(own.size());
  topology.cross_size = 0;
  for (const std::string_view host : order) {
    const auto& ranks = ranks_of_host[host];
    topology.homogeneous = topology.homogeneous && ranks.size() == own.size();
    if (host == hosts[static_cast<size_t>(rank)]) topology.cross_rank = topology.cross_size;
    if (static_cast<int>(ranks.size()) > topology.local_rank) ++topology.cross_size;
  }
  return topology;
}

}  // namespace horoscale
