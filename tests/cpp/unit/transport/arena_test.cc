#include "transport/shm/arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

namespace horoscale {
namespace {

constexpr size_t kBytes = Arena::kLeastBytes;

class ArenaTest : public ::testing::Test {
 protected:
  std::byte* Allocate(size_t bytes) {
    Result<std::byte*> block = arena_->Allocate(bytes);
    return block.ok() ? *block : nullptr;
  }
  // Memory that the kernel has committed for the arena.
  size_t ResidentBytes() const {
    struct stat info;
    EXPECT_EQ(fstat(arena_->fd(), &info), 0);
    return static_cast<size_t>(info.st_blocks) * 512;
  }

  std::unique_ptr<Arena> arena_ = Arena::Create(kBytes, 1).TakeValue();
};

TEST_F(ArenaTest, BlocksAreDisjointZeroedAndUsedAgain) {
  std::mt19937 random(3);
  std::map<std::byte*, std::pair<size_t, std::byte>> live;  // address → bytes, fill pattern
  for (int i = 0; i < 3000; ++i) {
    if (live.size() < 50 || random() % 2 == 0) {
      const size_t bytes = random() % 40'000;
      std::byte* block = Allocate(bytes);
      ASSERT_NE(block, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % Arena::kPageBytes, 0u);
      ASSERT_TRUE(std::all_of(block, block + bytes, [](std::byte b) { return b == std::byte{0}; }));
      const auto fill = static_cast<std::byte>(1 + random() % 255);
      std::memset(block, static_cast<int>(fill), bytes);
      live[block] = {bytes, fill};
    } else {
      auto at = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
      const auto [block, content] = *at;
      const auto [bytes, fill] = content;
      ASSERT_TRUE(std::all_of(block, block + bytes,
                              [expected = fill](std::byte b) { return b == expected; }));
      arena_->Free(block);
      live.erase(at);
    }
    if (live.size() > 400) {
      for (const auto& [block, content] : live) arena_->Free(block);
      live.clear();
    }
  }
  for (const auto& [block, content] : live) arena_->Free(block);
  EXPECT_NE(Allocate(kBytes - Arena::kPageBytes), nullptr) << "free blocks were not merged";
}

TEST_F(ArenaTest, FreedMemoryGoesBackToTheKernel) {
  const size_t before = ResidentBytes();
  std::byte* block = Allocate(8 << 20);
  EXPECT_LE(ResidentBytes(), before + 65536) << "memory is taken from its first use on";
  std::memset(block, 1, 8 << 20);
  EXPECT_GE(ResidentBytes(), before + (8 << 20));
  arena_->Free(block);
  EXPECT_LE(ResidentBytes(), before + 65536);
}

TEST_F(ArenaTest, WhatDoesNotFitIsAnError) {
  for (const size_t bytes : {kBytes, kBytes * 4, SIZE_MAX, SIZE_MAX - 4000}) {
    EXPECT_EQ(arena_->Allocate(bytes).status().code(), StatusCode::kSystem) << bytes;
  }
  EXPECT_EQ(Arena::Create(4096, 1).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ArenaTest, TakesLessAddressSpaceWhereThereIsLess) {
  // 2^46 bytes for each of a thousand ranks is more than any address space has.
  Result<std::unique_ptr<Arena>> arena = Arena::Create(size_t{1} << 46, 1000);
  ASSERT_TRUE(arena.ok()) << arena.status().message();
  EXPECT_LT((*arena)->bytes(), size_t{1} << 46);
  EXPECT_GE((*arena)->bytes(), Arena::kLeastBytes);
}

TEST_F(ArenaTest, OffsetsAreOfWholeBlocksOnly) {
  std::byte* block = Allocate(10'000);
  const int64_t offset = arena_->OffsetOf(block, 10'000);
  EXPECT_EQ(AddressInArena(arena_->region(), offset, 10'000), block);
  EXPECT_EQ(arena_->OffsetOf(block, 20'000), -1);
  EXPECT_EQ(arena_->OffsetOf(block - 1, 1), -1) << "the header";
  EXPECT_EQ(arena_->OffsetOf(arena_->region().data() + kBytes, 1), -1);
  arena_->Free(block);
  EXPECT_EQ(arena_->OffsetOf(block, 1), -1);
}

TEST_F(ArenaTest, OffsetsOfPeersAreChecked) {
  const MappedRegion& region = arena_->region();
  EXPECT_NE(AddressInArena(region, Arena::kPageBytes, 1), nullptr);
  EXPECT_NE(AddressInArena(region, kBytes - 1, 1), nullptr);
  EXPECT_EQ(AddressInArena(region, 0, 1), nullptr) << "the header";
  EXPECT_EQ(AddressInArena(region, -4096, 1), nullptr);
  EXPECT_EQ(AddressInArena(region, kBytes, 1), nullptr);
  EXPECT_EQ(AddressInArena(region, kBytes - 1, 2), nullptr);
  EXPECT_EQ(AddressInArena(region, INT64_MAX, SIZE_MAX), nullptr);
  EXPECT_EQ(AddressInArena(region, Arena::kPageBytes, SIZE_MAX), nullptr);
}

}  // namespace
}  // namespace horoscale
