// Collectives of more members than a chunk has cache lines, or room for announcements.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collectives/collective.h"
#include "collectives/round_loop.h"
#include "support/collective_cases.h"
#include "support/fickle_exchange.h"
#include "support/run_interleaved.h"
#include "support/sparse_exchange.h"

namespace horoscale {
namespace {

using testing::FickleHub;
using testing::SparseHub;
using testing::StepAll;
using Members = std::vector<uint32_t>;

// ------------------------------------------------------------------ small chunks, all members

// A chunk of 1 KiB has 16 cache lines and room for 64 announcements.
constexpr size_t kSmallChunk = 1024;

Members HostsOfTwo(uint32_t members) {
  Members hosts;
  for (uint32_t m = 0; m < members; ++m) hosts.push_back(m / 2);
  return hosts;
}
Members OneLargeHost(uint32_t members) {
  Members hosts(members, 1);
  hosts[0] = 0;
  return hosts;
}

class SmallChunks : public ::testing::TestWithParam<uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Members, SmallChunks, ::testing::Values(16, 17, 18, 33, 66),
                         [](const auto& test) { return "n" + std::to_string(test.param); });

TEST_P(SmallChunks, AllMembersGetWhatIsTheirs) {
  const uint32_t members = GetParam();
  for (const Members& hosts : {Members(), HostsOfTwo(members), OneLargeHost(members)}) {
    SCOPED_TRACE("hosts: " + std::to_string(hosts.empty() ? 1 : hosts.back() + 1));
    std::mt19937_64 random(members);
    FickleHub hub({.members = members,
                   .chunk_bytes = kSmallChunk,
                   .seed = members,
                   .refusals = 0.02,
                   .hosts = hosts});
    const testing::RowsCaseOptions options = {.members = members,
                                              .items = 2,
                                              .max_rows = 2 * int64_t{members},
                                              .max_row_elements = 20,
                                              .hosts = hosts};
    testing::RowsCaseOptions pairs = options;
    pairs.items = 1;
    pairs.max_rows = 3;
    const Reduction sum = {.divisor = members};
    const std::unique_ptr<testing::CollectiveCase> operations[] = {
        testing::MakeReducescatterCase(random, options, sum),
        testing::MakeAllgatherCase(random, pairs), testing::MakeAlltoallCase(random, pairs),
        testing::MakeAllreduceCase(random, {.members = members,
                                            .reduction = sum,
                                            .elements = 1000,
                                            .in_place = true,
                                            .hosts = hosts}),
        testing::MakeBroadcastCase(random, members, 3000, 2, {})};
    for (const auto& operation : operations) {
      EXPECT_EQ(testing::RunInterleaved(random, hub, *operation), "") << operation->Describe();
    }
  }
}

// ------------------------------------------------------------------ normal chunks, few members

class ManyMembers : public ::testing::TestWithParam<uint32_t> {
 protected:
  // The members of the first and the last host, and one between them that is alone on its host.
  void Place(bool on_hosts) {
    const uint32_t members = GetParam();
    if (on_hosts) {
      hosts_ = HostsOfTwo(members);
      real_ = {0, 1};
      if (members % 2 == 0) real_.push_back(members - 2);
      real_.push_back(members - 1);
    } else {
      hosts_.clear();
      real_ = {0, members / 2, members - 1};
    }
    hub_ = std::make_unique<SparseHub>(members, real_, hosts_);
  }

  Members real_;
  Members hosts_;
  std::unique_ptr<SparseHub> hub_;
};

INSTANTIATE_TEST_SUITE_P(Counts, ManyMembers,
                         ::testing::Values(4'096, 4'097, 4'098, 16'384, 16'385, 16'386, 100'000),
                         [](const auto& test) { return "n" + std::to_string(test.param); });

// What one member sends to another.
int64_t Value(uint32_t from, uint32_t to, int64_t index) {
  return int64_t{from} * 1'000'000'007 + int64_t{to} * 1009 + index;
}

TEST_P(ManyMembers, Alltoall) {
  const uint32_t members = GetParam();
  Place(false);
  // In units of 8 bytes: more than one turn takes.
  const auto rows = [](uint32_t from, uint32_t to) { return int64_t{1 + (from + 3 * to) % 20}; };
  std::vector<std::vector<int64_t>> inputs;
  std::vector<AllgatherResult> results(real_.size());
  std::vector<std::unique_ptr<Collective>> running;
  for (const uint32_t from : real_) {
    std::vector<int64_t>& input = inputs.emplace_back();
    std::vector<int64_t> splits(members);
    for (const uint32_t to : real_) {
      splits[to] = rows(from, to);
      for (int64_t i = 0; i < splits[to]; ++i) input.push_back(Value(from, to, i));
    }
    running.push_back(
        MakeAlltoall(hub_->member(from), {reinterpret_cast<const std::byte*>(input.data()), 8,
                                          std::move(splits), &results[running.size()]}));
  }
  StepAll(running);
  for (size_t r = 0; r < real_.size(); ++r) {
    std::vector<int64_t> expected_rows(members);
    std::vector<int64_t> expected;
    for (const uint32_t from : real_) {
      expected_rows[from] = rows(from, real_[r]);
      for (int64_t i = 0; i < rows(from, real_[r]); ++i) {
        expected.push_back(Value(from, real_[r], i));
      }
    }
    EXPECT_EQ(results[r].rows, expected_rows);
    EXPECT_EQ(std::memcmp(results[r].data.get(), expected.data(), 8 * expected.size()), 0);
    EXPECT_EQ(hub_->member(real_[r]).next_round, hub_->member(0).next_round);
  }
}

TEST_P(ManyMembers, Allgather) {
  const uint32_t members = GetParam();
  for (const bool on_hosts : {false, true}) {
    SCOPED_TRACE(on_hosts ? "hosts of two" : "one host");
    Place(on_hosts);
    std::vector<std::vector<int64_t>> inputs;
    std::vector<int64_t> expected_rows(members);
    std::vector<int64_t> expected;
    for (const uint32_t from : real_) {
      std::vector<int64_t>& input = inputs.emplace_back();
      expected_rows[from] = 1 + from % 20;
      for (int64_t i = 0; i < expected_rows[from]; ++i) input.push_back(Value(from, 0, i));
      expected.insert(expected.end(), input.begin(), input.end());
    }
    std::vector<std::vector<AllgatherResult>> results(real_.size());
    std::vector<std::unique_ptr<Collective>> running;
    for (size_t r = 0; r < real_.size(); ++r) {
      const auto* in = reinterpret_cast<const std::byte*>(inputs[r].data());
      running.push_back(MakeAllgather(
          hub_->member(real_[r]),
          {.items = {{in, static_cast<int64_t>(inputs[r].size()), 8}}, .results = &results[r]}));
    }
    StepAll(running);
    for (const std::vector<AllgatherResult>& result : results) {
      ASSERT_EQ(result.size(), 1u);
      EXPECT_EQ(result[0].rows, expected_rows);
      EXPECT_EQ(std::memcmp(result[0].data.get(), expected.data(), 8 * expected.size()), 0);
    }
  }
}

TEST_P(ManyMembers, Reducescatter) {
  const uint32_t members = GetParam();
  const int64_t rows = int64_t{members} + 3;  // the first three own two
  for (const bool on_hosts : {false, true}) {
    SCOPED_TRACE(on_hosts ? "hosts of two" : "one host");
    Place(on_hosts);
    std::vector<std::vector<int64_t>> inputs;
    std::vector<std::vector<int64_t>> outputs;
    std::vector<std::unique_ptr<Collective>> running;
    for (const uint32_t from : real_) {
      inputs.emplace_back();
      for (int64_t row = 0; row < rows; ++row) inputs.back().push_back(Value(from, 0, row));
      outputs.emplace_back(2);
    }
    for (size_t r = 0; r < real_.size(); ++r) {
      running.push_back(
          MakeReducescatter(hub_->member(real_[r]),
                            {.reduction = {.dtype = DataType::kInt64, .op = ReduceOp::kSum},
                             .items = {{reinterpret_cast<const std::byte*>(inputs[r].data()),
                                        reinterpret_cast<std::byte*>(outputs[r].data()), rows, 8}},
                             .encoding = {}}));
    }
    StepAll(running);
    for (size_t r = 0; r < real_.size(); ++r) {
      const RowRange own = RowsOf(rows, members, real_[r]);
      for (int64_t i = 0; i < own.count; ++i) {
        int64_t sum = 0;
        for (const auto& input : inputs) sum += input[static_cast<size_t>(own.first + i)];
        EXPECT_EQ(outputs[r][static_cast<size_t>(i)], sum) << "row " << own.first + i;
      }
    }
  }
}

// The slices of members that are not real come back as zeros.
TEST_P(ManyMembers, AllreduceOfTheSlicesThatRealMembersOwn) {
  const uint32_t members = GetParam();
  Place(false);
  const auto bytes = static_cast<int64_t>(SparseHub::kChunkBytes);
  std::vector<std::vector<int64_t>> values;
  std::vector<std::unique_ptr<Collective>> running;
  for (const uint32_t from : real_) {
    values.emplace_back();
    for (int64_t i = 0; i < bytes / 8; ++i) values.back().push_back(Value(from, 0, i));
  }
  const std::vector<std::vector<int64_t>> inputs = values;
  for (size_t r = 0; r < real_.size(); ++r) {
    auto* memory = reinterpret_cast<std::byte*>(values[r].data());
    running.push_back(MakeAllreduce(hub_->member(real_[r]),
                                    {.reduction = {.dtype = DataType::kInt64, .op = ReduceOp::kSum},
                                     .segments = {{memory, memory, bytes}},
                                     .absent = {},
                                     .encoding = {}}));
  }
  StepAll(running);
  for (const uint32_t owner : real_) {
    const ByteRange slice = SliceOf(bytes, members, owner);
    for (int64_t at = slice.first; at < slice.first + slice.bytes; at += 8) {
      const auto i = static_cast<size_t>(at / 8);
      int64_t sum = 0;
      for (const auto& input : inputs) sum += input[i];
      for (const auto& result : values) ASSERT_EQ(result[i], sum) << i;
    }
  }
}

}  // namespace
}  // namespace horoscale
