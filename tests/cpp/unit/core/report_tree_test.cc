#include "core/report_tree.h"

#include <gmock/gmock.h>

#include <numeric>

namespace horoscale {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReportTree, OnOneHostAllSpeakToTheCoordinator) {
  const ReportTree tree(4, {});
  EXPECT_THAT(tree.children(0), ElementsAre(1, 2, 3));
  for (const uint32_t member : {1, 2, 3}) {
    EXPECT_EQ(tree.parent(member), 0u);
    EXPECT_THAT(tree.children(member), IsEmpty());
  }
}

TEST(ReportTree, TheLowestMemberSpeaksForItsHost) {
  const ReportTree tree(7, std::vector<uint32_t>{0, 1, 0, 1, 2, 1, 2});
  EXPECT_THAT(tree.children(0), ElementsAre(1, 4, 2));
  EXPECT_THAT(tree.children(1), ElementsAre(3, 5));
  EXPECT_THAT(tree.children(4), ElementsAre(6));
  EXPECT_EQ(tree.parent(5), 1u);
  EXPECT_THAT(tree.Group(1), ElementsAre(1, 3, 5));
  EXPECT_THAT(tree.Group(6), ElementsAre(6));
  EXPECT_TRUE(tree.GoesThrough(5, 1));
  EXPECT_TRUE(tree.GoesThrough(1, 1));
  EXPECT_FALSE(tree.GoesThrough(6, 1));
  EXPECT_FALSE(tree.GoesThrough(0, 1));
  EXPECT_FALSE(tree.GoesThrough(7, 0)) << "there is no such member";
}

// For any job: everyone is heard once, and no rank listens to more hosts than the fan-out.
TEST(ReportTree, ManyHosts) {
  for (const uint32_t num_hosts : {2u, 16u, 17u, 18u, 33u, 300u}) {
    for (const uint32_t per_host : {1u, 3u}) {
      std::vector<uint32_t> hosts(num_hosts * per_host);
      for (uint32_t m = 0; m < hosts.size(); ++m) hosts[m] = m / per_host;
      const auto size = static_cast<uint32_t>(hosts.size());
      const ReportTree tree(size, hosts);
      std::vector<uint32_t> all(size);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(tree.Group(0), all);
      size_t links = 0;
      for (uint32_t m = 0; m < size; ++m) {
        EXPECT_LE(tree.children(m).size(), ReportTree::kFanOut + per_host - 1);
        links += tree.children(m).size();
        for (const uint32_t child : tree.children(m)) EXPECT_EQ(tree.parent(child), m);
        EXPECT_TRUE(m == 0 || tree.parent(m) < m);
      }
      EXPECT_EQ(links, size - 1);
    }
  }
}

}  // namespace
}  // namespace horoscale
