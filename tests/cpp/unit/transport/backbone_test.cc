// The links that are made at start-up: few, and sufficient.

#include "transport/tcp/backbone.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/report_tree.h"

namespace horoscale {
namespace {

bool Contains(const std::vector<int>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

// Ranks assigned to hosts in blocks, or round-robin.
std::vector<uint32_t> RandomHosts(std::minstd_rand& random, uint32_t count) {
  std::vector<uint32_t> hosts;
  for (uint32_t host = 0; host < count; ++host) hosts.insert(hosts.end(), 1 + random() % 6, host);
  if (random() % 2 == 0) return hosts;
  std::shuffle(hosts.begin(), hosts.end(), random);
  std::vector<int> number(count, -1);  // in the order of their lowest ranks
  int next = 0;
  for (uint32_t& host : hosts) {
    if (number[host] < 0) number[host] = next++;
    host = static_cast<uint32_t>(number[host]);
  }
  return hosts;
}

TEST(Backbone, LinksEveryRankWithEveryHostAndBothSidesAgree) {
  std::minstd_rand random(1);
  for (int round = 0; round < 500; ++round) {
    const std::vector<uint32_t> hosts = RandomHosts(random, 1 + static_cast<uint32_t>(round) % 8);
    const ReportTree tree(static_cast<uint32_t>(hosts.size()), hosts);
    for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
      const std::vector<int> peers = BackbonePeers(rank, hosts);
      const uint32_t own = hosts[static_cast<size_t>(rank)];
      std::set<uint32_t> reached = {own};
      for (const int peer : peers) {
        EXPECT_NE(hosts[static_cast<size_t>(peer)], own);
        EXPECT_TRUE(Contains(BackbonePeers(peer, hosts), rank)) << rank << " and " << peer;
        reached.insert(hosts[static_cast<size_t>(peer)]);
      }
      EXPECT_EQ(reached.size(), std::set<uint32_t>(hosts.begin(), hosts.end()).size());
      const auto parent = static_cast<int>(tree.parent(static_cast<uint32_t>(rank)));
      EXPECT_TRUE(hosts[static_cast<size_t>(parent)] == own || Contains(peers, parent));
    }
  }
}

// On hosts of equal size: one link to each other host, plus those of the report tree at each host's
// representative.
TEST(Backbone, IsSmall) {
  std::vector<uint32_t> hosts;
  for (uint32_t host = 0; host < 32; ++host) hosts.insert(hosts.end(), 8, host);
  for (int rank = 0; rank < 256; ++rank) {
    EXPECT_EQ(BackbonePeers(rank, hosts).size(), 31u) << rank;
  }
}

}  // namespace
}  // namespace horoscale
