#include "runtime/topology.h"

#include <gtest/gtest.h>

#include <vector>

namespace horoscale {
namespace {

TEST(Topology, OneHost) {
  const std::vector<std::string> hosts = {"a", "a", "a"};
  const Topology topology = TopologyOf(2, hosts);
  EXPECT_EQ(topology.rank, 2);
  EXPECT_EQ(topology.size, 3);
  EXPECT_EQ(topology.local_rank, 2);
  EXPECT_EQ(topology.local_size, 3);
  EXPECT_EQ(topology.cross_rank, 0);
  EXPECT_EQ(topology.cross_size, 1);
  EXPECT_TRUE(topology.homogeneous);
}

TEST(Topology, SeveralHostsOfTheSameSize) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  const Topology topology = TopologyOf(3, hosts);
  EXPECT_EQ(topology.local_rank, 1);
  EXPECT_EQ(topology.cross_rank, 1);
  EXPECT_EQ(topology.cross_size, 2);
  EXPECT_TRUE(topology.homogeneous);
}

TEST(Topology, CrossRanksCountOnlyHostsThatHaveTheLocalRank) {
  const std::vector<std::string> hosts = {"a", "a", "b", "c", "c"};
  const Topology second_of_c = TopologyOf(4, hosts);
  EXPECT_EQ(second_of_c.local_rank, 1);
  EXPECT_EQ(second_of_c.cross_rank, 1);  // after host a; host b has no second rank
  EXPECT_EQ(second_of_c.cross_size, 2);
  EXPECT_FALSE(second_of_c.homogeneous);
  EXPECT_EQ(TopologyOf(3, hosts).cross_rank, 2);
  EXPECT_EQ(TopologyOf(3, hosts).cross_size, 3);
}

}  // namespace
}  // namespace horoscale
