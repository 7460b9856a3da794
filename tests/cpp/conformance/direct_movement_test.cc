// Allgather, alltoall, broadcast and reduce-scatter that read members' memory in place: the same
// results as the copying algorithms, whichever tensors are in shared memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "collectives/collective.h"
#include "conformance/transport_fixture.h"
#include "platform/deadline.h"

namespace horoscale {
namespace {

constexpr int kMembers = 3;
constexpr size_t kChunkBytes = 16 << 10;
constexpr int64_t kRowBytes = 12;
using Shared = std::vector<bool>;  // by member: whether its inputs are in shared memory
const std::vector<Shared> kMixtures = {
    {false, false, false}, {true, true, true}, {true, false, true}, {false, true, false}};
// Sizes of a member's input: zero, few, odd, and more than the direct algorithms move in a step.
const std::vector<std::vector<int64_t>> kRows = {
    {0, 0, 0}, {1, 0, 3}, {50'001, 0, 7}, {20'000, 20'000, 20'000}, {100'003, 60'000, 1}};

class DirectMovementTest : public TransportTest {
 protected:
  // A member's memory, with a pattern that differs by member.
  std::byte* Input(int member, int64_t bytes, bool shared, uint32_t seed) {
    std::byte* memory = nullptr;
    const auto size = static_cast<size_t>(bytes);
    if (shared) {
      const auto block = At(member).AllocateShared(std::max<size_t>(size, 1));
      EXPECT_TRUE(block.ok());
      memory = *block;
    } else {
      private_.push_back(std::make_unique<std::byte[]>(std::max<size_t>(size, 1)));
      memory = private_.back().get();
    }
    const std::vector<std::byte> pattern =
        Pattern(size, seed * 100 + static_cast<uint32_t>(member));
    std::copy(pattern.begin(), pattern.end(), memory);
    return memory;
  }
  std::vector<std::byte> PatternOf(int member, int64_t bytes, uint32_t seed) {
    return Pattern(static_cast<size_t>(bytes), seed * 100 + static_cast<uint32_t>(member));
  }

  using Maker = std::function<std::unique_ptr<Collective>(Exchange& exchange)>;

  // One thread per member, which shares no state with the others.
  void RunAll(const Maker& make) {
    if (exchanges_.empty()) exchanges_ = OpenAll();
    std::vector<std::thread> members;
    for (auto& exchange : exchanges_) {
      members.emplace_back([&make, &exchange] {
        const std::unique_ptr<Collective> collective = make(*exchange);
        const Deadline deadline = Deadline::After(kPatience);
        for (;;) {
          const Result<Progress> progress = collective->Step();
          ASSERT_TRUE(progress.ok()) << progress.status().message();
          if (*progress == Progress::kDone) return;
          ASSERT_FALSE(deadline.Passed());
          if (*progress == Progress::kIdle) std::this_thread::yield();
        }
      });
    }
    for (std::thread& member : members) member.join();
    for (auto& exchange : exchanges_) EXPECT_EQ(exchange->next_round, exchanges_[0]->next_round);
  }
  void StartAnew() {
    exchanges_.clear();
    // Private memory is read directly only beyond 16 chunks.
    Start(kMembers, {.banks = {.chunk_bytes = kChunkBytes, .banks = 4}});
  }

  static void ExpectBytes(const std::byte* got, const std::vector<std::byte>& expected,
                          const std::string& what) {
    if (expected.empty()) return;
    EXPECT_EQ(std::memcmp(got, expected.data(), expected.size()), 0) << what;
  }

  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::unique_ptr<std::byte[]>> private_;
};

TEST_P(DirectMovementTest, Allgather) {
  StartAnew();
  for (const Shared& shared : kMixtures) {
    for (const std::vector<int64_t>& rows : kRows) {
      // Two tensors; the second orders its rows by member differently.
      std::vector<std::vector<AllgatherItem>> items(kMembers);
      std::vector<std::byte> expected[2];
      std::vector<std::vector<std::byte>> room(kMembers);
      for (uint32_t i = 0; i < 2; ++i) {
        for (int m = 0; m < kMembers; ++m) {
          const int64_t own = rows[static_cast<size_t>(i == 0 ? m : kMembers - 1 - m)];
          const auto at = static_cast<size_t>(m);
          items[at].push_back({Input(m, own * kRowBytes, shared[at], i), own, kRowBytes});
          const std::vector<std::byte> part = PatternOf(m, own * kRowBytes, i);
          expected[i].insert(expected[i].end(), part.begin(), part.end());
        }
      }
      std::vector<std::vector<AllgatherResult>> results(kMembers);
      for (size_t m = 0; m < kMembers; ++m) {
        room[m].resize(expected[1].size() + 1);
        items[m][1].room = {room[m].data(), rows[0] + rows[1] + rows[2]};
      }
      RunAll([&](Exchange& exchange) {
        return MakeAllgather(exchange, {items[exchange.self()], &results[exchange.self()]});
      });
      for (size_t m = 0; m < kMembers; ++m) {
        ExpectBytes(results[m][0].data.get(), expected[0], "allgather");
        ExpectBytes(room[m].data(), expected[1], "allgather into memory of the caller's");
      }
    }
  }
}

TEST_P(DirectMovementTest, Alltoall) {
  StartAnew();
  for (const Shared& shared : kMixtures) {
    for (const std::vector<int64_t>& rows : kRows) {
      // Member m sends rows[(m + p) % 3] rows to member p.
      std::vector<std::vector<int64_t>> splits(kMembers);
      std::vector<std::byte*> inputs(kMembers);
      std::vector<std::vector<std::byte>> expected(kMembers);
      for (size_t m = 0; m < kMembers; ++m) {
        for (size_t p = 0; p < kMembers; ++p) splits[m].push_back(rows[(m + p) % kMembers]);
        const int64_t total = (rows[0] + rows[1] + rows[2]) * kRowBytes;
        inputs[m] = Input(static_cast<int>(m), total, shared[m], 5);
        const std::vector<std::byte> all = PatternOf(static_cast<int>(m), total, 5);
        auto from = all.begin();
        for (size_t p = 0; p < kMembers; ++p) {
          const auto to = from + splits[m][p] * kRowBytes;
          expected[p].insert(expected[p].end(), from, to);
          from = to;
        }
      }
      std::vector<AllgatherResult> results(kMembers);
      RunAll([&](Exchange& exchange) {
        const uint32_t m = exchange.self();
        return MakeAlltoall(exchange, {inputs[m], kRowBytes, splits[m], &results[m]});
      });
      for (size_t m = 0; m < kMembers; ++m) {
        ExpectBytes(results[m].data.get(), expected[m], "alltoall");
      }
    }
  }
}

TEST_P(DirectMovementTest, AlltoallInACircle) {
  StartAnew();
  for (const Shared& shared : kMixtures) {
    constexpr int64_t kBytes = 2'000'000;
    std::vector<std::byte*> inputs(kMembers);
    for (int m = 0; m < kMembers; ++m) {
      inputs[static_cast<size_t>(m)] = Input(m, kBytes, shared[static_cast<size_t>(m)], 6);
    }
    std::vector<AllgatherResult> results(kMembers);
    RunAll([&](Exchange& exchange) {
      const uint32_t m = exchange.self();
      std::vector<int64_t> splits(kMembers);
      splits[(m + 1) % kMembers] = kBytes;  // to the next one only
      return MakeAlltoall(exchange, {inputs[m], 1, splits, &results[m]});
    });
    for (int m = 0; m < kMembers; ++m) {
      ExpectBytes(results[static_cast<size_t>(m)].data.get(),
                  PatternOf((m + kMembers - 1) % kMembers, kBytes, 6), "alltoall");
    }
  }
}

TEST_P(DirectMovementTest, Broadcast) {
  StartAnew();
  for (const Shared& shared : kMixtures) {
    for (const bool in_place : {true, false}) {
      for (uint32_t root = 0; root < kMembers; ++root) {
        const std::vector<int64_t> sizes = {70'000, 0, 1, 1'500'001};
        std::vector<std::vector<Segment>> segments(kMembers);
        for (uint32_t i = 0; i < sizes.size(); ++i) {
          for (size_t m = 0; m < kMembers; ++m) {
            const auto memory = [&](uint32_t seed) {
              return Input(static_cast<int>(m), sizes[i], shared[m], seed);
            };
            std::byte* const in = m == root ? memory(7 + i) : nullptr;
            segments[m].push_back({in, in && in_place ? in : memory(99), sizes[i]});
          }
        }
        RunAll([&](Exchange& exchange) {
          return MakeBroadcast(exchange, {root, segments[exchange.self()], {}});
        });
        for (uint32_t i = 0; i < sizes.size(); ++i) {
          const auto expected = PatternOf(static_cast<int>(root), sizes[i], 7 + i);
          for (size_t m = 0; m < kMembers; ++m) {
            ExpectBytes(segments[m][i].out, expected, "broadcast");
          }
        }
      }
    }
  }
}

TEST_P(DirectMovementTest, ReducescatterGivesTheBitsOfTheCopyingForm) {
  constexpr Reduction kSum = {.dtype = DataType::kFloat32, .op = ReduceOp::kSum};
  std::vector<std::vector<std::byte>> copied;
  for (const Shared& shared :
       {Shared{false, false, false}, Shared{true, true, true}, Shared{true, false, true}}) {
    StartAnew();
    std::vector<std::vector<ReducescatterItem>> items(kMembers);
    std::vector<std::vector<std::byte>> results;
    results.reserve(2 * kMembers);
    for (const int64_t rows : {int64_t{2}, int64_t{100'001}}) {
      for (size_t m = 0; m < kMembers; ++m) {
        std::byte* const in =
            Input(static_cast<int>(m), rows * kRowBytes, shared[m], static_cast<uint32_t>(rows));
        auto* const values = reinterpret_cast<float*>(in);
        for (int64_t i = 0; i < rows * 3; ++i) {
          values[i] = static_cast<float>((i * 7919 + static_cast<int64_t>(m)) % 10'007) / 3.0f;
        }
        const auto own = RowsOf(rows, kMembers, static_cast<uint32_t>(m)).count * kRowBytes;
        results.emplace_back(static_cast<size_t>(own) + 1);
        items[m].push_back({in, results.back().data(), rows, kRowBytes});
      }
    }
    RunAll([&](Exchange& exchange) {
      return MakeReducescatter(exchange, {kSum, items[exchange.self()]});
    });
    if (copied.empty()) copied = results;
    EXPECT_EQ(results, copied);
  }
}

TEST_P(DirectMovementTest, ReducescatterHasSplitsAndAllOperators) {
  const std::vector<int64_t> splits = {1, 0, 100'000};
  ASSERT_EQ(splits.size(), size_t{kMembers});
  const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const auto value = [](size_t member, int64_t i) {
    return static_cast<int32_t>(i * 7919 % 100'003) << (4 * member);
  };
  for (const bool shared : {true, false}) {
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kBitwiseXor}) {
      StartAnew();
      std::vector<std::vector<ReducescatterItem>> items(kMembers);
      std::vector<std::vector<int32_t>> results(kMembers);
      for (size_t m = 0; m < kMembers; ++m) {
        std::byte* const in = Input(static_cast<int>(m), rows * 4, shared, 0);
        for (int64_t i = 0; i < rows; ++i) reinterpret_cast<int32_t*>(in)[i] = value(m, i);
        results[m].resize(static_cast<size_t>(splits[m]));
        items[m].push_back({in, reinterpret_cast<std::byte*>(results[m].data()), rows, 4});
      }
      RunAll([&](Exchange& exchange) {
        ReducescatterArgs args{{.dtype = DataType::kInt32, .op = op}, items[exchange.self()]};
        args.splits = splits;
        return MakeReducescatter(exchange, std::move(args));
      });
      int64_t i = 0;
      for (const std::vector<int32_t>& result : results) {
        for (const int32_t element : result) {
          int32_t expected = 0;
          for (size_t m = 0; m < kMembers; ++m) {
            const int32_t given = value(m, i);
            expected = op == ReduceOp::kMax ? std::max(expected, given) : expected ^ given;
          }
          ASSERT_EQ(element, expected) << "row " << i << " shared " << shared;
          ++i;
        }
      }
    }
  }
}

TEST_P(DirectMovementTest, SharedMemoryMovesNoDataThroughBanks) {
  StartAnew();
  const int64_t rows = 100'000;
  std::vector<std::byte*> inputs(kMembers);
  for (int m = 0; m < kMembers; ++m) {
    inputs[static_cast<size_t>(m)] = Input(m, rows * kRowBytes, true, 1);
  }
  std::vector<std::vector<AllgatherResult>> results(kMembers);
  RunAll([&](Exchange& exchange) {
    const uint32_t m = exchange.self();
    return MakeAllgather(exchange, {{{inputs[m], rows, kRowBytes}}, &results[m]});
  });
  EXPECT_LT(At(0).counters().data_bytes_sent, 1000u);
}

TEST_P(DirectMovementTest, PrivateMemoryIsReadWhereItIsLarge) {
  for (const bool large : {false, true}) {
    StartAnew();
    exchanges_ = OpenAll();
    const int64_t bytes = 16 * int64_t{kChunkBytes} + (large ? 1 : 0);
    std::vector<std::byte*> inputs(kMembers);
    for (int m = 0; m < kMembers; ++m) {
      inputs[static_cast<size_t>(m)] = Input(m, bytes, false, 1);
    }
    std::vector<std::vector<AllgatherResult>> results(kMembers);
    RunAll([&](Exchange& exchange) {
      const uint32_t m = exchange.self();
      return MakeAllgather(exchange, {{{inputs[m], bytes, 1}}, &results[m]});
    });
    const bool is_read = large && exchanges_[0]->shared_memory()->ReadsPrivate();
    const auto copied = static_cast<int64_t>(At(0).counters().data_bytes_sent);
    if (is_read) {
      EXPECT_LT(copied, 1000);
    } else {
      EXPECT_GE(copied, bytes);
    }
  }
}

// A member that gives up may change its tensors at once: peers must discard what they read from
// then on.
TEST_P(DirectMovementTest, WhatAMemberWithdrawsIsNotAResult) {
  for (const bool shared : {true, false}) {
    StartAnew();
    exchanges_ = OpenAll();
    const int64_t rows = 300'000;
    std::vector<std::vector<AllgatherResult>> results(kMembers);
    std::vector<std::unique_ptr<Collective>> members;
    for (int m = 0; m < kMembers; ++m) {
      const auto at = static_cast<size_t>(m);
      members.push_back(MakeAllgather(
          *exchanges_[at],
          {{{Input(m, rows * kRowBytes, shared, 1), rows, kRowBytes}}, &results[at]}));
    }
    // Member 2 announces where its rows are, then fails.
    ASSERT_TRUE(members[2]->Step().ok());
    exchanges_[2]->Withdraw();
    members[2].reset();
    for (int i = 0; i < 1000; ++i) {
      for (size_t m = 0; m < 2; ++m) {
        const Result<Progress> progress = members[m]->Step();
        ASSERT_TRUE(progress.ok()) << progress.status().message();
        ASSERT_NE(*progress, Progress::kDone);
      }
    }
  }
}

// A member announces bytes outside its memory.
TEST_P(DirectMovementTest, ImpossiblePlacesAreRefused) {
  StartAnew();
  exchanges_ = OpenAll();
  struct {
    int64_t rows = 1'000'000;
    int64_t offset = int64_t{1} << 62;
    uint64_t address = 0;
    int64_t reads_private = 1;
  } lie;
  for (size_t m = 1; m < kMembers; ++m) {
    PublishBytes(*exchanges_[m], 0, std::as_bytes(std::span(&lie, 1)));
  }
  std::vector<AllgatherResult> results;
  const auto collective = MakeAllgather(*exchanges_[0], {{{nullptr, 0, kRowBytes}}, &results});
  Result<Progress> progress = Progress::kIdle;
  const Deadline deadline = Deadline::After(kPatience);
  while (progress.ok() && !deadline.Passed()) progress = collective->Step();
  ASSERT_FALSE(progress.ok());
  EXPECT_EQ(progress.status().code(), StatusCode::kProtocol) << progress.status().message();
}

INSTANTIATE_TEST_SUITE_P(All, DirectMovementTest, ::testing::ValuesIn(MemoryTransportKinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace horoscale
