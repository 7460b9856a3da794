// Who is notified of what when parties join, join again, end or give up.
#include "rendezvous/gatherings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace horoscale {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kCapacity = 1 << 20;
const std::string kKey = "job";

GatherRequest Join(uint32_t place, uint32_t count = 3) {
  GatherRequest request = {kKey, place, count, {}};
  request.will = "it ended";
  return request;
}

// In these tests a guest's number is its place plus 100 times its attempt.
TEST(GatheringsTest, AllAreAnsweredWhenTheLastHasCome) {
  Gatherings gatherings(kCapacity);
  EXPECT_THAT(gatherings.Add(0, Join(0)).complete, IsEmpty());
  EXPECT_THAT(gatherings.Add(2, Join(2)).complete, IsEmpty());
  const auto outcome = gatherings.Add(1, Join(1));
  ASSERT_THAT(outcome.complete, SizeIs(1));
  EXPECT_THAT(outcome.complete[0].guests, SizeIs(3));
  EXPECT_EQ(outcome.complete[0].gathered.values.size(), 3);
}

TEST(GatheringsTest, WhoComesAgainReplacesWhatItGave) {
  Gatherings gatherings(kCapacity);
  const std::string old_card = "old";
  const std::string new_card = "new";
  GatherRequest request = Join(0, 2);
  request.value = std::as_bytes(std::span(old_card));
  (void)gatherings.Add(0, request);
  request.value = std::as_bytes(std::span(new_card));
  const auto again = gatherings.Add(100, request);
  ASSERT_THAT(again.refused, SizeIs(1));
  EXPECT_EQ(again.refused[0].first, 0);
  EXPECT_THAT(again.refused[0].second.message(),
              HasSubstr("another process has already connected as rank 0"));
  EXPECT_THAT(gatherings.Remove(0, kKey).refused, IsEmpty()) << "it was replaced";
  const auto outcome = gatherings.Add(1, Join(1, 2));
  ASSERT_THAT(outcome.complete, SizeIs(1));
  EXPECT_EQ(outcome.complete[0].guests, (std::vector<uint64_t>{100, 1}));
  EXPECT_EQ(outcome.complete[0].gathered.values.at(0).size(), 3);
  EXPECT_EQ(outcome.complete[0].gathered.values.at(0)[0], std::byte{'n'});
}

TEST(GatheringsTest, AnEndIsToldToThoseWhoWaitAndOnceToThoseWhoComeLater) {
  Gatherings gatherings(kCapacity);
  (void)gatherings.Add(0, Join(0));
  (void)gatherings.Add(1, Join(1));
  const auto ended = gatherings.Remove(1, kKey);
  ASSERT_THAT(ended.refused, SizeIs(1));
  EXPECT_EQ(ended.refused[0].first, 0);
  EXPECT_EQ(ended.refused[0].second.message(), "it ended");
  const auto late = gatherings.Add(2, Join(2));
  ASSERT_THAT(late.refused, SizeIs(1)) << "rank 2 would wait for rank 1, which has ended";
  EXPECT_THAT(gatherings.Add(102, Join(2)).refused, IsEmpty()) << "all try again";
  EXPECT_THAT(gatherings.Add(100, Join(0)).refused, IsEmpty());
  EXPECT_THAT(gatherings.Add(101, Join(1)).complete, SizeIs(1));
}

TEST(GatheringsTest, WhoFailedAndComesAgainIsForgiven) {
  Gatherings gatherings(kCapacity);
  (void)gatherings.Add(1, Join(1));
  (void)gatherings.Remove(1, kKey);
  EXPECT_THAT(gatherings.Add(101, Join(1)).refused, IsEmpty());
  EXPECT_THAT(gatherings.Add(0, Join(0)).refused, IsEmpty());
  EXPECT_THAT(gatherings.Add(2, Join(2)).complete, SizeIs(1));
}

TEST(GatheringsTest, OneThatGivesUpTakesTheOthersAlongAndNamesTheMissing) {
  Gatherings gatherings(kCapacity);
  (void)gatherings.Add(0, Join(0));
  (void)gatherings.Add(1, Join(1));
  const auto outcome = gatherings.Expire(1, kKey);
  ASSERT_THAT(outcome.refused, SizeIs(2));
  EXPECT_EQ(outcome.refused[0].first, 1);
  EXPECT_EQ(outcome.refused[0].second.code(), StatusCode::kTimeout);
  EXPECT_EQ(outcome.refused[0].second.detail().ranks, (std::vector<int>{2}));
  EXPECT_THAT(outcome.refused[1].second.message(),
              HasSubstr("rank 1: rank 2 of 3 did not connect"));
}

TEST(GatheringsTest, WhoKnowsOfAFailureAndComesAgainBeginsAnew) {
  Gatherings gatherings(kCapacity);
  (void)gatherings.Add(0, Join(0));
  (void)gatherings.Add(1, Join(1));
  (void)gatherings.Remove(1, kKey);  // rank 0 is notified; rank 2 has not joined yet
  EXPECT_THAT(gatherings.Add(100, Join(0)).refused, IsEmpty());
  EXPECT_THAT(gatherings.Add(2, Join(2)).refused, IsEmpty())
      << "that was an attempt before its own";
  EXPECT_THAT(gatherings.Add(101, Join(1)).complete, SizeIs(1));
}

TEST(GatheringsTest, OneThatGivesUpAPlainGatheringIsNotMissingForTheOthers) {
  Gatherings gatherings(kCapacity);
  (void)gatherings.Add(0, {"g", 0, 4, {}});
  (void)gatherings.Add(2, {"g", 2, 4, {}});
  const auto outcome = gatherings.Expire(0, "g");
  ASSERT_THAT(outcome.refused, SizeIs(2));
  for (const auto& [guest, why] : outcome.refused) {
    EXPECT_EQ(why.code(), StatusCode::kTimeout) << guest;
    EXPECT_EQ(why.detail().ranks, (std::vector<int>{1, 3})) << guest;
  }
  EXPECT_THAT(gatherings.Expire(2, "g").refused, IsEmpty());
}

TEST(GatheringsTest, SizesThatContradictEachOtherAreSaidToAll) {
  Gatherings gatherings(kCapacity);
  (void)gatherings.Add(0, Join(0, 3));
  const auto outcome = gatherings.Add(3, Join(3, 4));
  ASSERT_THAT(outcome.refused, SizeIs(2));
  for (const auto& [guest, why] : outcome.refused) {
    EXPECT_THAT(why.message(), HasSubstr("expects 4 ranks, other processes expect 3")) << guest;
  }
}

TEST(GatheringsTest, ARoundIsCountedAndForgetsWhatWasBefore) {
  Gatherings gatherings(kCapacity);
  for (uint64_t round = 0; round < 3; ++round) {
    (void)gatherings.Add(0, Join(0, 2));
    const auto outcome = gatherings.Add(1, Join(1, 2));
    ASSERT_THAT(outcome.complete, SizeIs(1));
    EXPECT_EQ(outcome.complete[0].gathered.round, round);
  }
}

TEST(GatheringsTest, OfAPlainGatheringNothingStays) {
  Gatherings gatherings(300);  // one entry at a time
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(gatherings.Add(0, {"g", 0, 1, {}}).complete, SizeIs(1));
    (void)gatherings.Add(1, {"h", 0, 2, {}});
    EXPECT_THAT(gatherings.Expire(1, "h").refused, SizeIs(1));
  }
  (void)gatherings.Add(2, {"h", 0, 3, {}});
  const auto full = gatherings.Add(3, {"h", 1, 3, {}});
  ASSERT_THAT(full.refused, SizeIs(1));
  EXPECT_THAT(full.refused[0].second.message(), HasSubstr("full"));
}

}  // namespace
}  // namespace horoscale
