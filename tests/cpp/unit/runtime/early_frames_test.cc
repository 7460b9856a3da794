#include "runtime/early_frames.h"

#include <gtest/gtest.h>

#include <vector>

namespace horoscale {
namespace {

FrameHeader Of(uint32_t process_set, uint32_t incarnation) {
  return {FrameKind::kReport, {process_set, incarnation}};
}

TEST(EarlyFrames, ComeInTheOrderInWhichTheyWereSent) {
  EarlyFrames frames;
  for (uint8_t i = 0; i < 10; ++i) {
    const std::byte payload{i};
    frames.Add(i % 3, Of(7, 5), {&payload, 1});
    frames.Add(i % 3, Of(8, 6), {&payload, 1});
  }
  const EarlyFrames::Kept kept = frames.Take({7, 5});
  ASSERT_EQ(kept.frames.size(), 10u);
  EXPECT_FALSE(kept.dropped_of);
  for (size_t i = 0; i < kept.frames.size(); ++i) {
    EXPECT_EQ(kept.frames[i].from_rank, static_cast<int>(i % 3));
    EXPECT_EQ(kept.frames[i].payload[0], std::byte(i));
  }
  EXPECT_EQ(frames.Take({8, 6}).frames.size(), 10u);
  EXPECT_EQ(frames.bytes(), 0u);
}

TEST(EarlyFrames, AreBoundedInBytes) {
  EarlyFrames frames(1 << 20);
  const std::vector<std::byte> payload(300 << 10);
  for (int i = 0; i < 3; ++i) frames.Add(1, Of(1, 1), payload);
  EXPECT_LE(frames.bytes(), size_t{1} << 20);
  frames.Add(2, Of(1, 1), payload);
  frames.Add(3, Of(1, 1), {});  // after a gap no frame is usable
  for (int i = 0; i < 100'000; ++i) frames.Add(4, Of(1, 2), {});
  EXPECT_LE(frames.bytes(), size_t{1} << 20);
  const EarlyFrames::Kept kept = frames.Take({1, 1});
  EXPECT_EQ(kept.frames.size(), 3u);
  EXPECT_EQ(kept.dropped_of, 2);
  EXPECT_EQ(frames.Take({1, 2}).dropped_of, 4) << "empty ones take room, too";
  EXPECT_EQ(frames.bytes(), 0u);
}

TEST(EarlyFrames, OfSetsThatWillNotBeAreForgotten) {
  EarlyFrames frames;
  const std::byte payload{1};
  frames.Add(1, Of(9, 1), {&payload, 1});
  frames.Add(1, Of(1, 2), {&payload, 1});
  frames.Add(1, Of(9, 2), {&payload, 1});  // incarnation 2 will belong to set 1
  frames.Add(1, Of(2, 3), {&payload, 1});
  EXPECT_EQ(frames.Take({1, 2}).frames.size(), 1u);
  EXPECT_TRUE(frames.Take({9, 2}).frames.empty());
  EXPECT_EQ(frames.Take({2, 3}).frames.size(), 1u);
}

TEST(EarlyFrames, IncarnationsFarAheadMakeRoomForTheNext) {
  EarlyFrames frames;
  for (uint32_t incarnation = 1'000'000; incarnation > 900'000; --incarnation) {
    frames.Add(1, Of(1, incarnation), {});
  }
  frames.Add(1, Of(1, 5), {});
  EXPECT_LE(frames.bytes(), 4096 * sizeof(EarlyFrames::Frame));
  EXPECT_EQ(frames.Take({1, 5}).frames.size(), 1u);
}

}  // namespace
}  // namespace horoscale
