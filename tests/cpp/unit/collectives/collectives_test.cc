#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collectives/collective.h"
#include "collectives/fold.h"
#include "support/collective_cases.h"
#include "support/fickle_exchange.h"
#include "support/run_interleaved.h"

namespace horoscale {
namespace {

using testing::CollectiveCase;
using testing::FickleHub;
using testing::MakeAllgatherCase;
using testing::MakeAllreduceCase;
using testing::MakeReducescatterCase;
using testing::RunInterleaved;

TEST(AllreduceTest, EveryReductionAtEverySizeAroundTheLimits) {
  std::mt19937_64 random(1);
  for (uint32_t members = 1; members <= 8; ++members) {
    FickleHub hub({.members = members, .seed = members});
    for (int dtype = 0; dtype < kNumDataTypes; ++dtype) {
      for (int op = 0; op < kNumReduceOps; ++op) {
        const Reduction r = {.dtype = static_cast<DataType>(dtype),
                             .op = static_cast<ReduceOp>(op),
                             .divisor = members};
        if (!CheckReduction(r).ok()) continue;
        const auto chunk = static_cast<int64_t>(4096 / SizeOf(r.dtype));
        for (int64_t elements :
             {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{7}, int64_t{8}, int64_t{9}, int64_t{63},
              int64_t{64}, int64_t{65}, chunk - 1, chunk, chunk + 1, 3 * chunk + 5}) {
          auto operation = MakeAllreduceCase(random, {.members = members,
                                                      .reduction = r,
                                                      .elements = elements,
                                                      .cuts = static_cast<int>(random() % 4),
                                                      .in_place = random() % 2 == 0});
          ASSERT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
        }
      }
    }
  }
}

TEST(AllreduceTest, ManyChunksOfLargeMessagesKeepTheBanksInOrder) {
  std::mt19937_64 random(2);
  for (uint32_t banks : {4u, 5u, 8u}) {
    for (uint32_t members : {2u, 3u, 5u}) {
      FickleHub hub({.members = members, .banks = banks, .seed = banks});
      auto operation =
          MakeAllreduceCase(random, {.members = members,
                                     .reduction = {.op = ReduceOp::kAverage, .divisor = members},
                                     .elements = 200'000,
                                     .cuts = 20,
                                     .in_place = true});
      EXPECT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
    }
  }
}

TEST(AllreduceTest, ResultsDontDependOnTheChunk) {
  // The expected result is computed without chunks, so matching it with each size is enough.
  for (size_t chunk : {size_t{4096}, size_t{8192}, size_t{1} << 20}) {
    std::mt19937_64 random(3);
    FickleHub hub({.members = 3, .chunk_bytes = chunk});
    auto operation = MakeAllreduceCase(
        random, {.members = 3, .reduction = {.dtype = DataType::kBfloat16}, .elements = 60'000});
    EXPECT_EQ(RunInterleaved(random, hub, *operation), "") << "chunks of " << chunk;
  }
}

TEST(ReduceTest, LargeOnesKeepTheBanksInOrder) {
  std::mt19937_64 random(5);
  for (const uint32_t banks : {4u, 5u}) {
    for (const uint32_t members : {2u, 3u, 5u}) {
      for (const std::vector<uint32_t>& absent : {std::vector<uint32_t>{}, {1}}) {
        FickleHub hub({.members = members, .banks = banks, .seed = banks});
        auto operation = testing::MakeReduceCase(
            random, {.members = members,
                     .reduction = {.op = ReduceOp::kAverage, .divisor = members},
                     .elements = 100'000,
                     .cuts = 20,
                     .in_place = random() % 2 == 0,
                     .absent = absent});
        EXPECT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
      }
    }
  }
}

TEST(AllreduceTest, AbsentMembersContributeNothingAndKeepCount) {
  std::mt19937_64 random(4);
  for (int64_t elements : {0, 1, 700, 5'000}) {
    for (const std::vector<uint32_t>& absent :
         {std::vector<uint32_t>{1}, {3, 0}, {0, 1, 2}, {2, 3, 1}}) {
      FickleHub hub({.members = 4});
      const int64_t participants = 4 - static_cast<int64_t>(absent.size());
      for (ReduceOp op : {ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kProduct}) {
        auto operation = MakeAllreduceCase(
            random, {.members = 4,
                     .reduction = {.op = op, .postscale = 0.5, .divisor = participants},
                     .elements = elements,
                     .absent = absent});
        EXPECT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
      }
    }
  }
}

TEST(CollectivesTest, AnythingInARowOnOneExchange) {
  for (uint32_t members = 1; members <= 8; ++members) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      std::mt19937_64 random(seed * 100 + members);
      FickleHub hub({.members = members,
                     .chunk_bytes = seed % 2 == 0 ? size_t{4096} : size_t{12288},
                     .banks = seed % 3 == 0 ? 6u : 4u,
                     .seed = seed,
                     .refusals = seed % 3 == 1 ? 0.0 : 0.5});
      for (int i = 0; i < 40; ++i) {
        auto operation = testing::MakeRandomCase(random, members, 40'000);
        ASSERT_EQ(RunInterleaved(random, hub, *operation), "")
            << "seed " << seed << ", operation " << i << ": " << operation->Describe();
      }
    }
  }
}

TEST(CollectivesTest, NothingToMoveTakesNoRounds) {
  std::mt19937_64 random(5);
  FickleHub hub({.members = 3});
  auto allreduce = MakeAllreduceCase(random, {.members = 3});
  auto broadcast = testing::MakeBroadcastCase(random, 3, 0, 2, {});
  auto reduce = testing::MakeReduceCase(random, {.members = 3});
  auto reducescatter = MakeReducescatterCase(random, {.members = 3, .items = 2, .max_rows = 0},
                                             Reduction{.divisor = 3});
  for (CollectiveCase* operation :
       {allreduce.get(), broadcast.get(), reduce.get(), reducescatter.get()}) {
    EXPECT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
  }
  EXPECT_EQ(hub.member(0).next_round, 0u);
}

TEST(CollectivesTest, MoreTensorsThanCountsFitInAChunk) {
  std::mt19937_64 random(6);
  FickleHub hub({.members = 2});
  const testing::RowsCaseOptions options = {.members = 2, .items = 1500, .max_rows = 2};
  auto allgather = MakeAllgatherCase(random, options);
  EXPECT_EQ(RunInterleaved(random, hub, *allgather), "");
  auto gather = testing::MakeGatherCase(random, options);
  EXPECT_EQ(RunInterleaved(random, hub, *gather), "");
}

TEST(RowsOfTest, TheLowerOnesTakeOneMore) {
  int64_t next = 0;
  for (uint32_t member = 0; member < 4; ++member) {
    const RowRange rows = RowsOf(10, 4, member);
    EXPECT_EQ(rows.first, next);
    EXPECT_EQ(rows.count, member < 2 ? 3 : 2);
    next += rows.count;
  }
  EXPECT_EQ(RowsOf(0, 3, 2).count, 0);
  EXPECT_EQ(RowsOf(int64_t{1} << 40, 3, 2).first + RowsOf(int64_t{1} << 40, 3, 2).count,
            int64_t{1} << 40);
}

// Runs a collective against a peer that publishes `words` as its sizes; returns the collective's
// error.
template <typename MakeCollective>
Status MeetNonsense(const std::vector<int64_t>& words, MakeCollective make) {
  FickleHub hub({.members = 2, .refusals = 0});
  std::unique_ptr<Collective> collective = make(hub.member(0));
  std::byte* bank = hub.member(1).Reserve(0);
  std::memcpy(bank, words.data(), words.size() * sizeof(int64_t));
  hub.member(1).Publish(0, words.size() * sizeof(int64_t));
  for (int i = 0; i < 100; ++i) {
    const Result<Progress> progress = collective->Step();
    if (!progress.ok()) return progress.status();
  }
  return Status::Ok();
}

TEST(AllgatherTest, CountsThatCantBeAreRefused) {
  for (int64_t rows : {int64_t{-1}, std::numeric_limits<int64_t>::max(),
                       std::numeric_limits<int64_t>::min(), int64_t{1} << 61}) {
    std::vector<AllgatherResult> results;
    const std::byte own[16] = {};
    const Status status = MeetNonsense({rows}, [&](Exchange& exchange) {
      return MakeAllgather(exchange, {.items = {{own, 2, 8}}, .results = &results});
    });
    EXPECT_EQ(status.code(), StatusCode::kProtocol) << rows;
    EXPECT_NE(status.message().find("member 1"), std::string::npos) << status.message();
  }
}

TEST(AllgatherTest, CountsWhoseSumOverflowsAreRefused) {
  std::vector<AllgatherResult> results;
  const std::byte own[8] = {};
  const int64_t half = std::numeric_limits<int64_t>::max() / 16;
  const Status status = MeetNonsense({half + 1, half + 1}, [&](Exchange& exchange) {
    return MakeAllgather(exchange, {.items = {{own, 1, 8}, {own, 1, 8}}, .results = &results});
  });
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
}

TEST(AlltoallTest, AnnouncementsThatCantBeAreRefused) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  // Rows for member 0 and the rounds they take; a chunk holds 512 rows of 8 bytes.
  const std::vector<std::vector<int64_t>> nonsense = {{-1, 1}, {kMax, 1}, {513, 1},
                                                      {1, -1}, {1, kMax}, {1, 0}};
  for (const std::vector<int64_t>& words : nonsense) {
    AllgatherResult result;
    const std::byte own[16] = {};
    const Status status = MeetNonsense(words, [&](Exchange& exchange) {
      return MakeAlltoall(exchange, {own, 8, {1, 1}, &result});
    });
    EXPECT_EQ(status.code(), StatusCode::kProtocol) << words[0] << " in " << words[1];
  }
}

}  // namespace
}  // namespace horoscale
