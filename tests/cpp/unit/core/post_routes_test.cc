// Which members exchange posts, on one host and on several.

#include "core/post_routes.h"

#include <gtest/gtest.h>

#include <vector>

namespace horoscale {
namespace {

using Kind = PostRoutes::Kind;
using Members = std::vector<uint32_t>;

// Members 0, 2 and 3 on one host, 1 and 5 on another, 4 alone on a third.
const Members kThreeHosts = {0, 1, 0, 0, 2, 1};

TEST(PostRoutes, OnOneHostEverybodyPostsToEverybody) {
  const PostRoutes routes(3, 1, {});
  EXPECT_FALSE(routes.spans_hosts());
  EXPECT_EQ(routes.targets(), (Members{0, 2}));
  EXPECT_EQ(routes.members(), (Members{0, 1, 2}));
  EXPECT_EQ(routes.KindFrom(0), Kind::kMember);
  EXPECT_EQ(routes.KindFrom(1), Kind::kNone);
  EXPECT_TRUE(routes.Counts(2));
  EXPECT_EQ(routes.most(), 3u);
}

TEST(PostRoutes, SpeakersPostForTheirHosts) {
  const PostRoutes routes(6, 1, kThreeHosts);
  EXPECT_TRUE(routes.is_speaker());
  EXPECT_TRUE(routes.targets().empty());
  EXPECT_EQ(routes.members(), (Members{1, 5}));
  EXPECT_EQ(routes.speakers(), (Members{0, 1, 4}));
  EXPECT_EQ(routes.KindFrom(5), Kind::kMember);
  EXPECT_EQ(routes.KindFrom(0), Kind::kHost);
  EXPECT_EQ(routes.KindFrom(2), Kind::kNone) << "it speaks for nobody";
  EXPECT_EQ(routes.most(), 3u);
}

TEST(PostRoutes, OthersListenToTheirSpeaker) {
  const PostRoutes routes(6, 5, kThreeHosts);
  EXPECT_FALSE(routes.is_speaker());
  EXPECT_EQ(routes.targets(), Members{1});
  EXPECT_EQ(routes.KindFrom(1), Kind::kResult);
  EXPECT_FALSE(routes.Counts(1));
  for (const uint32_t other : {0u, 2u, 3u, 4u}) EXPECT_EQ(routes.KindFrom(other), Kind::kNone);
}

// The coordinator hears from each member once: from 1 and 5 through their host's reports.
TEST(PostRoutes, EachMemberIsCountedOnce) {
  const PostRoutes coordinator(6, 0, kThreeHosts);
  EXPECT_TRUE(coordinator.Counts(2));
  EXPECT_TRUE(coordinator.Counts(3));
  EXPECT_TRUE(coordinator.Counts(4));
  EXPECT_FALSE(coordinator.Counts(1));
  EXPECT_FALSE(coordinator.Counts(5));
  const PostRoutes speaker(6, 1, kThreeHosts);
  EXPECT_TRUE(speaker.Counts(5));
  EXPECT_FALSE(speaker.Counts(4)) << "that is for the coordinator";
}

}  // namespace
}  // namespace horoscale
