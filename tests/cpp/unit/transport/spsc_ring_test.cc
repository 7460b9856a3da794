#include "transport/memory/spsc_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace horoscale {
namespace {

constexpr size_t kCapacity = 64;

class SpscRingTest : public ::testing::Test {
 protected:
  RingControl& control() { return *reinterpret_cast<RingControl*>(memory_); }

  alignas(64) std::byte memory_[RingMemoryBytes(kCapacity)] = {};
  RingProducer producer_{memory_, kCapacity};
  RingConsumer consumer_{memory_, kCapacity};
};

TEST_F(SpscRingTest, BytesComeOutInOrderWhateverTheSteps) {
  std::mt19937 random(1);
  uint8_t next_in = 0, next_out = 0;
  size_t moved = 0;
  while (moved < 100'000) {
    std::vector<std::byte> bytes(random() % 80);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(next_in + i);
    const Result<size_t> appended = producer_.Append(bytes);
    ASSERT_TRUE(appended.ok());
    next_in = static_cast<uint8_t>(next_in + *appended);
    producer_.Commit();
    std::vector<std::byte> out(random() % 80);
    const Result<size_t> read = consumer_.Read(out);
    ASSERT_TRUE(read.ok());
    for (size_t i = 0; i < *read; ++i) ASSERT_EQ(out[i], static_cast<std::byte>(next_out++));
    consumer_.Commit();
    moved += *read;
  }
}

TEST_F(SpscRingTest, TakesWhatFitsAndNoMore) {
  const std::vector<std::byte> bytes(kCapacity + 1);
  EXPECT_EQ(*producer_.Append(bytes), kCapacity);
  EXPECT_EQ(*producer_.Append(bytes), 0u);
  std::vector<std::byte> out(kCapacity);
  EXPECT_EQ(*consumer_.Read(out), 0u) << "not committed yet";
  producer_.Commit();
  EXPECT_EQ(*consumer_.Read(std::span(out).first(10)), 10u);
  EXPECT_EQ(*producer_.Append(bytes), 0u) << "not committed yet";
  EXPECT_FALSE(consumer_.Commit());
  producer_.SetWaits(true);
  EXPECT_TRUE(consumer_.Commit());
  EXPECT_EQ(*producer_.Append(bytes), 10u);
}

TEST_F(SpscRingTest, AnImpossibleHeadIsAnError) {
  std::vector<std::byte> out(1);
  for (const uint64_t head : {uint64_t{kCapacity + 1}, ~uint64_t{0}}) {
    control().head = head;
    EXPECT_EQ(consumer_.Read(out).status().code(), StatusCode::kProtocol);
  }
}

TEST_F(SpscRingTest, AnImpossibleTailIsAnError) {
  const std::vector<std::byte> bytes(kCapacity);
  ASSERT_EQ(*producer_.Append(bytes), kCapacity);
  for (const uint64_t tail : {uint64_t{kCapacity + 1}, ~uint64_t{0} - 10}) {
    control().tail = tail;
    EXPECT_EQ(producer_.Append(bytes).status().code(), StatusCode::kProtocol);
  }
}

}  // namespace
}  // namespace horoscale
