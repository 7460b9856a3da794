#include "collectives/adasum_allreduce.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <vector>

#include "collectives/adasum_stages.h"
#include "support/adasum_case.h"
#include "support/run_interleaved.h"

namespace horoscale {
namespace {

using testing::AdasumCase;
using testing::AdasumCaseOptions;
using testing::FickleHub;
using testing::RunInterleaved;

constexpr std::array kTypes = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32,
                               DataType::kFloat64};

void ExpectAsReference(std::mt19937_64& random, const AdasumCaseOptions& options) {
  FickleHub hub({.members = options.members, .seed = random()});
  AdasumCase operation(random, options);
  EXPECT_EQ(RunInterleaved(random, hub, operation), "") << operation.Describe();
}

TEST(AdasumAllreduceTest, AnyNumberOfMembers) {
  std::mt19937_64 random(1);
  for (uint32_t members = 1; members <= 9; ++members) {
    for (const DataType dtype : kTypes) {
      for (const std::vector<int64_t>& sizes :
           {std::vector<int64_t>{1}, {17}, {5000}, {3, 0, 700, 1, 16, 2000, 0}}) {
        ExpectAsReference(
            random,
            {.members = members, .dtype = dtype, .sizes = sizes, .in_place = random() % 2 == 0});
      }
    }
  }
}

TEST(AdasumAllreduceTest, GroupsAverageFirst) {
  std::mt19937_64 random(2);
  for (const auto& [members, group] : std::vector<std::pair<uint32_t, uint32_t>>{
           {2, 2}, {3, 3}, {4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {8, 8}, {9, 3}}) {
    for (const DataType dtype : kTypes) {
      ExpectAsReference(random, {.members = members,
                                 .group = group,
                                 .dtype = dtype,
                                 .sizes = {1, 3000, 33},
                                 .in_place = random() % 2 == 0});
    }
  }
}

TEST(AdasumAllreduceTest, ScaleFactors) {
  std::mt19937_64 random(3);
  for (const DataType dtype : kTypes) {
    for (const bool in_place : {false, true}) {
      ExpectAsReference(random, {.members = 3,
                                 .dtype = dtype,
                                 .sizes = {100, 7},
                                 .prescale = 0.25,
                                 .postscale = -3,
                                 .in_place = in_place});
    }
  }
}

TEST(AdasumAllreduceTest, AbsentMembersCountAsZeros) {
  std::mt19937_64 random(4);
  for (const std::vector<uint32_t>& absent :
       {std::vector<uint32_t>{0}, {3}, {4}, {0, 1}, {1, 2, 4}, {0, 1, 2, 3}}) {
    for (const DataType dtype : {DataType::kFloat16, DataType::kFloat32}) {
      ExpectAsReference(random,
                        {.members = 5, .dtype = dtype, .sizes = {900, 2}, .absent = absent});
    }
  }
}

TEST(AdasumAllreduceTest, MoreTensorsThanDotsFitInAChunk) {
  std::mt19937_64 random(5);
  ExpectAsReference(random, {.members = 4, .sizes = std::vector<int64_t>(400, 5)});
}

TEST(AdasumAllreduceTest, FusedTensorsHaveTheBitsOfSingleOnes) {
  const std::vector<int64_t> sizes = {33, 4000, 1, 250};
  std::mt19937_64 random(6);
  FickleHub hub({.members = 3});
  AdasumCase together(random, {.members = 3, .sizes = sizes});
  ASSERT_EQ(RunInterleaved(random, hub, together), "");
  for (size_t t = 0; t < sizes.size(); ++t) {
    FickleHub wide({.members = 3, .chunk_bytes = 16384, .banks = 6, .refusals = 0});
    std::vector<std::vector<std::byte>> results(
        3, std::vector<std::byte>(together.Input(0, t).size()));
    std::vector<std::unique_ptr<Collective>> running;
    for (uint32_t m = 0; m < 3; ++m) {
      AllreduceArgs args;
      args.reduction.op = ReduceOp::kAdasum;
      const testing::Bytes& in = together.Input(m, t);
      args.segments = {{in.data(), results[m].data(), static_cast<int64_t>(in.size())}};
      running.push_back(MakeAllreduce(wide.member(m), std::move(args)));
    }
    testing::StepAll(running);
    for (uint32_t m = 0; m < 3; ++m) EXPECT_EQ(results[m], together.Result(m, t));
  }
}

TEST(AdasumStagesTest, SharesOfAClusterAreWhatItHas) {
  for (const auto& [members, group] :
       std::vector<std::pair<uint32_t, uint32_t>>{{2, 1}, {7, 1}, {8, 2}, {9, 3}}) {
    const AdasumStages stages(members, group);
    std::vector<ElementRange> held(members, {0, 1000});
    for (size_t stage = 0; stage < stages.count(); ++stage) {
      for (uint32_t member = 0; member < members; ++member) {
        const auto cluster = stages.Cluster(stage, member);
        if (cluster.empty() || cluster.front() != member) continue;
        const ElementRange whole = held[member];
        int64_t next = whole.first;
        for (uint32_t index = 0; index < cluster.size(); ++index) {
          EXPECT_EQ(stages.Cluster(stage, cluster[index]), cluster);
          held[cluster[index]] = stages.Share(stage, whole, index);
          if (held[cluster[index]].count == 0) continue;
          EXPECT_EQ(held[cluster[index]].first, next);
          next += held[cluster[index]].count;
        }
        EXPECT_EQ(next, whole.first + whole.count);
      }
    }
  }
}

TEST(AdasumStagesTest, GroupsFollowTheStartLevel) {
  EXPECT_EQ(AdasumGroup(std::array{0, 1, 2, 3, 4, 5}, 1), 1u);
  EXPECT_EQ(AdasumGroup(std::array{0, 1, 2, 3, 4, 5}, 3), 3u);
  EXPECT_EQ(AdasumGroup(std::array{0, 1, 2, 3}, 8), 4u);
  EXPECT_EQ(AdasumGroup(std::array{0, 4}, 4), 1u);
  EXPECT_EQ(AdasumGroup(std::array{1, 2, 4, 7}, 4), 2u);
  EXPECT_EQ(AdasumGroup(std::array{0, 1, 2}, 2), std::nullopt);
}

}  // namespace
}  // namespace horoscale
