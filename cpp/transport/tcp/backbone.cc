#include "transport/tcp/backbone.h"

#include <algorithm>

#include "core/report_tree.h"

namespace horoscale {

std::vector<int> BackbonePeers(int rank, std::span<const uint32_t> hosts) {
  std::vector<std::vector<int>> members;  // by host
  uint32_t own_place = 0;                 // among those of its host
  for (size_t other = 0; other < hosts.size(); ++other) {
    if (members.size() <= hosts[other]) members.resize(hosts[other] + size_t{1});
    if (static_cast<int>(other) == rank) {
      own_place = static_cast<uint32_t>(members[hosts[other]].size());
    }
    members[hosts[other]].push_back(static_cast<int>(other));
  }
  const uint32_t own_host = hosts[static_cast<size_t>(rank)];
  const size_t own_count = members[own_host].size();
  std::vector<int> peers;
  for (uint32_t host = 0; host < members.size(); ++host) {
    if (host == own_host) continue;
    const std::vector<int>& others = members[host];
    peers.push_back(others[own_place % others.size()]);
    for (size_t place = own_place; place < others.size(); place += own_count) {
      peers.push_back(others[place]);
    }
  }
  const ReportTree tree(static_cast<uint32_t>(hosts.size()), hosts);
  const auto self = static_cast<uint32_t>(rank);
  const auto add = [&](uint32_t other) {
    if (hosts[other] != own_host) peers.push_back(static_cast<int>(other));
  };
  add(tree.parent(self));
  for (const uint32_t child : tree.children(self)) add(child);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace horoscale
