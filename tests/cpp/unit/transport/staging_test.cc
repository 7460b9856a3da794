#include "transport/memory/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace horoscale {
namespace {

constexpr size_t kLarge = 4 * kStagingCellsBytes + 12345;

class StagingTest : public ::testing::Test {
 protected:
  struct FreeAligned {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{4096}); }
  };

  StagingTest()
      : area_(static_cast<std::byte*>(::operator new(kStagingAreaBytes, std::align_val_t{4096}))) {
    std::memset(area_.get(), 0, kStagingAreaBytes);
  }

  StagingControl& control() { return *reinterpret_cast<StagingControl*>(area_.get()); }

  static std::vector<std::byte> Message(size_t bytes, uint32_t seed) {
    // Every word is unique across positions and messages, so that a misplaced one is detected.
    std::vector<uint32_t> words(bytes / sizeof(uint32_t) + 1);
    std::iota(words.begin(), words.end(), seed << 24);
    std::vector<std::byte> message(bytes);
    std::memcpy(message.data(), words.data(), bytes);
    return message;
  }

  // Like the system call that copies from the sender's memory.
  static void Read(const std::vector<std::byte>& from, const StagingReader::Piece& piece,
                   std::vector<std::byte>& into) {
    ASSERT_LE(piece.offset + piece.bytes, from.size());
    std::memcpy(into.data() + piece.offset, from.data() + piece.offset, piece.bytes);
  }

  const std::unique_ptr<std::byte, FreeAligned> area_;
};

TEST_F(StagingTest, AReceiverAloneReadsAll) {
  for (const size_t bytes : {kLeastStagedBytes, size_t{100'001}, kLarge}) {
    const auto sent = Message(bytes, 1);
    std::vector<std::byte> received(bytes);
    StagingReader reader(area_.get(), 1, received);
    EXPECT_FALSE(reader.IsDone());
    while (const auto piece = reader.NextUnread(false)) Read(sent, *piece, received);
    EXPECT_TRUE(reader.IsDone());
    EXPECT_EQ(received, sent);
  }
}

TEST_F(StagingTest, AReceiverThatIsLeftAloneReadsMoreAtOnce) {
  const auto sent = Message(kLarge, 1);
  std::vector<std::byte> received(kLarge);
  StagingReader reader(area_.get(), 1, received);
  StagingWriter writer(area_.get(), 1, sent);
  const auto read = [&] {
    const auto piece = reader.NextUnread(false);
    Read(sent, *piece, received);
    return piece->bytes;
  };
  const size_t one = StagingPieces(kLarge).BytesOf(0);
  EXPECT_LE(read(), one);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read(), one);
  EXPECT_EQ(read(), 4 * one);
  EXPECT_EQ(read(), 4 * one);
  EXPECT_TRUE(writer.Step());
  EXPECT_GT(reader.TakeStaged(), 0u);
  EXPECT_EQ(read(), one) << "the sender has come";
  while (!reader.IsDone()) read();
  EXPECT_EQ(received, sent);
}

TEST_F(StagingTest, WhatTheSenderMayStillBeginWith) {
  const auto sent = Message(kLarge, 1);
  std::vector<std::byte> received(kLarge);
  StagingReader reader(area_.get(), 1, received);
  StagingWriter writer(area_.get(), 1, sent);
  EXPECT_TRUE(reader.LeavesSome());
  while (writer.Step()) {
  }
  EXPECT_TRUE(reader.LeavesSome()) << "its cells are full";
  while (const auto piece = reader.NextUnread(false)) Read(sent, *piece, received);
  EXPECT_FALSE(reader.LeavesSome());
  while (reader.TakeStaged() > 0) {
  }
  EXPECT_EQ(received, sent);
}

TEST_F(StagingTest, BothMeetWhateverTheSteps) {
  std::mt19937 random(1);
  for (uint32_t use = 1; use <= 15; ++use) {
    const auto sent = Message(kLeastStagedBytes + random() % kLarge, use);
    std::vector<std::byte> received(sent.size());
    StagingReader reader(area_.get(), use, received);
    StagingWriter writer(area_.get(), use, sent);
    const uint32_t often = random() % 8;
    while (!reader.IsDone()) {
      if (random() % 8 < often) writer.Step();
      if (random() % 2 == 0) {
        reader.TakeStaged();
      } else if (const auto piece = reader.NextUnread(random() % 4 == 0)) {
        Read(sent, *piece, received);
      }
    }
    EXPECT_EQ(received, sent) << use;
    EXPECT_EQ(reader.NextUnread(true), std::nullopt);
    EXPECT_EQ(reader.TakeStaged(), 0u);
  }
}

TEST_F(StagingTest, AFullAreaHoldsUpItsSenderOnly) {
  const auto sent = Message(kLarge, 3);
  std::vector<std::byte> received(sent.size());
  StagingReader reader(area_.get(), 1, received);
  StagingWriter writer(area_.get(), 1, sent);
  while (writer.Step()) {
  }
  const uint32_t cells = StagingPieces(kLarge).cells();
  EXPECT_EQ(control().staged.load() & 0xffff'ffff, cells);
  size_t taken = 0;
  while (const size_t bytes = reader.TakeStaged()) taken += bytes;
  EXPECT_EQ(taken, kStagingCellsBytes);
  EXPECT_TRUE(writer.Step());
}

// A piece that the sender is copying is left to it, unless that takes too long.
TEST_F(StagingTest, NoPieceIsLeftToASenderThatHasStopped) {
  const auto sent = Message(kLeastStagedBytes, 3);
  std::vector<std::byte> received(sent.size());
  StagingReader reader(area_.get(), 1, received);
  control().begun.store(uint64_t{1} << 32 | StagingPieces(sent.size()).count());
  EXPECT_EQ(reader.NextUnread(false), std::nullopt);
  EXPECT_FALSE(reader.IsDone());
  while (const auto piece = reader.NextUnread(true)) Read(sent, *piece, received);
  EXPECT_TRUE(reader.IsDone());
  EXPECT_EQ(received, sent);
}

TEST_F(StagingTest, AnEarlierUseMeansNothing) {
  const auto first = Message(kLarge, 1);
  const auto second = Message(kLarge, 2);
  std::vector<std::byte> received(kLarge);
  StagingReader abandoned(area_.get(), 1, received);
  StagingWriter before(area_.get(), 1, first);
  EXPECT_TRUE(before.Step());
  StagingReader reader(area_.get(), 2, received);
  EXPECT_EQ(reader.TakeStaged(), 0u);
  EXPECT_FALSE(before.Step());
  StagingWriter writer(area_.get(), 2, second);
  EXPECT_TRUE(writer.Step());
  while (reader.TakeStaged() > 0) {
  }
  while (const auto piece = reader.NextUnread(false)) Read(second, *piece, received);
  EXPECT_EQ(received, second);
}

// A faulty process at the other end can corrupt the message, but nothing else.
TEST_F(StagingTest, ImpossibleCountersAreHarmless) {
  const auto sent = Message(kLarge, 1);
  std::vector<std::byte> received(kLarge);
  StagingReader reader(area_.get(), 1, received);
  StagingWriter writer(area_.get(), 1, sent);
  control().emptied.store(uint64_t{1} << 32 | 7);
  EXPECT_FALSE(writer.Step());
  control().unread.store(uint64_t{1} << 32 | 0xffff'ffff);
  control().emptied.store(uint64_t{1} << 32);
  EXPECT_TRUE(writer.Step());
  control().staged.store(uint64_t{1} << 32 | 0xffff'ffff);
  while (reader.TakeStaged() > 0) {
  }
  EXPECT_TRUE(reader.IsDone());
}

TEST_F(StagingTest, TwoThreads) {
  std::mt19937 random(5);
  for (uint32_t use = 1; use <= 15; ++use) {
    const auto sent = Message(kLeastStagedBytes + random() % (kLarge / 2), use);
    std::vector<std::byte> received(sent.size());
    StagingReader reader(area_.get(), use, received);
    std::atomic<bool> is_over = false;
    std::thread sender([&] {
      StagingWriter writer(area_.get(), use, sent);
      while (!is_over.load()) {
        if (!writer.Step()) std::this_thread::yield();
      }
    });
    while (!reader.IsDone()) {
      if (reader.TakeStaged() > 0) continue;
      // Every third time the reader leaves the copying to the sender.
      if (use % 3 == 0) {
        std::this_thread::yield();
      } else if (const auto piece = reader.NextUnread(use % 3 == 1)) {
        Read(sent, *piece, received);
      }
    }
    is_over.store(true);
    sender.join();
    EXPECT_EQ(received, sent) << use;
  }
}

}  // namespace
}  // namespace horoscale
