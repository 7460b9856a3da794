// The fixture of the transports' conformance tests: every test runs over every transport.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "conformance/transport_world.h"
#include "platform/deadline.h"

namespace horoscale {

inline constexpr double kPatience = 20;  // seconds until a test gives up
inline constexpr ChannelId kChannel = {7, 1};
inline constexpr MemoryOptions kTiny = {.banks = {.chunk_bytes = 4096, .banks = 4},
                                        .ring_bytes = 1024};

inline std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> pattern(bytes);
  std::minstd_rand random(seed + 1);
  // Three bytes of each number: tests without optimization spend most of their time here.
  for (size_t at = 0; at < bytes; at += 3) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(pattern.data() + at, &word, std::min<size_t>(3, bytes - at));
  }
  return pattern;
}

class TransportTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  void Start(int size, const MemoryOptions& options = kTiny) {
    world_ = GetParam().make(size, options);
    inboxes_.resize(static_cast<size_t>(size));
  }
  Transport& At(int rank) { return world_->At(rank); }
  Inbox& InboxOf(int rank) { return inboxes_[static_cast<size_t>(rank)]; }
  void Poll(int rank) { At(rank).Poll(InboxOf(rank)); }
  int size() const { return static_cast<int>(inboxes_.size()); }

  // Polls all ranks in turn until the condition holds; false on timeout.
  bool PollUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(kPatience);
    while (!condition()) {
      if (deadline.Passed()) return false;
      for (int rank = 0; rank < size(); ++rank) {
        if (!skipped_.contains(rank)) Poll(rank);
      }
    }
    return true;
  }

  std::unique_ptr<Exchange> Open(int rank, const std::vector<int>& ranks,
                                 ChannelId channel = kChannel) {
    Result<std::unique_ptr<Exchange>> exchange = At(rank).Open(channel, ranks);
    EXPECT_TRUE(exchange.ok()) << exchange.status().message();
    return exchange.TakeValue();
  }

  // Opens one channel on all ranks and waits until it is ready; its exchanges in order of rank.
  std::vector<std::unique_ptr<Exchange>> OpenAll(ChannelId channel = kChannel) {
    std::vector<int> ranks(static_cast<size_t>(size()));
    for (int rank = 0; rank < size(); ++rank) ranks[static_cast<size_t>(rank)] = rank;
    std::vector<std::unique_ptr<Exchange>> exchanges;
    for (const int rank : ranks) exchanges.push_back(Open(rank, ranks, channel));
    EXPECT_TRUE(PollUntil([&] {
      for (auto& exchange : exchanges) {
        if (exchange->Reserve(0) == nullptr) return false;
      }
      return true;
    }));
    return exchanges;
  }

  std::unique_ptr<TransportWorld> world_;
  std::vector<Inbox> inboxes_;
  std::set<int> skipped_;  // ranks that PollUntil() skips
};

inline void PublishBytes(Exchange& exchange, uint64_t round, std::span<const std::byte> bytes) {
  std::byte* chunk = exchange.Reserve(round);
  ASSERT_NE(chunk, nullptr);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(chunk) % 64, 0u);
  std::copy(bytes.begin(), bytes.end(), chunk);
  exchange.Publish(round, bytes.size());
}

#define HOROSCALE_INSTANTIATE_TRANSPORT_TEST(fixture)                              \
  INSTANTIATE_TEST_SUITE_P(All, fixture, ::testing::ValuesIn(AllTransportKinds()), \
                           [](const auto& kind) { return kind.param.name; })

}  // namespace horoscale
