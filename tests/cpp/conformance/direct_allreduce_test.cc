// Allreduce and reduce in shared memory: the same bits as the copying algorithms, without their
// copies.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "collectives/collective.h"
#include "conformance/transport_fixture.h"
#include "platform/deadline.h"

namespace horoscale {
namespace {

constexpr Reduction kAverageOf3 = {
    .dtype = DataType::kFloat32, .op = ReduceOp::kAverage, .divisor = 3};
// Element counts of a fused operation's tensors: zero, few, odd, more than a block and a step.
constexpr int64_t kCounts[] = {5, 0, 100'003, 1, 16, 40'000, 7'777};

// Where a member's tensors are, and where its results go.
enum class Where { kPrivate, kShared, kIntoShared };

class DirectAllreduceTest : public TransportTest {
 protected:
  struct Tensor {
    const float* in;
    float* out;
  };
  using Tensors = std::vector<Tensor>;

  float* Allocate(int rank, int64_t count, bool shared) {
    if (!shared) {
      private_.push_back(std::make_unique<float[]>(static_cast<size_t>(count)));
      return private_.back().get();
    }
    const auto memory = At(rank).AllocateShared(static_cast<size_t>(count) * sizeof(float));
    EXPECT_TRUE(memory.ok());
    return reinterpret_cast<float*>(*memory);
  }

  // A member's tensors, filled with values that differ by member.
  Tensors MakeTensors(int rank, Where where) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::uniform_real_distribution<float> values(-1e3f, 1e3f);
    Tensors tensors;
    for (const int64_t count : kCounts) {
      float* const in = Allocate(rank, count, where == Where::kShared);
      float* const out = where == Where::kIntoShared ? Allocate(rank, count, true) : in;
      for (int64_t i = 0; i < count; ++i) in[i] = values(random);
      tensors.push_back({in, out});
    }
    return tensors;
  }

  void Reduce(Exchange& exchange, const Tensors& tensors, std::optional<uint32_t> root) {
    AllreduceArgs args{kAverageOf3, {}, {}};
    args.root = root;
    for (size_t i = 0; i < tensors.size(); ++i) {
      args.segments.push_back({reinterpret_cast<const std::byte*>(tensors[i].in),
                               reinterpret_cast<std::byte*>(tensors[i].out),
                               kCounts[i] * static_cast<int64_t>(sizeof(float))});
    }
    const std::unique_ptr<Collective> collective =
        root ? MakeReduce(exchange, std::move(args)) : MakeAllreduce(exchange, std::move(args));
    const Deadline deadline = Deadline::After(kPatience);
    for (;;) {
      const Result<Progress> progress = collective->Step();
      ASSERT_TRUE(progress.ok());
      if (*progress == Progress::kDone) return;
      ASSERT_FALSE(deadline.Passed());
      if (*progress == Progress::kIdle) std::this_thread::yield();
    }
  }

  // Runs one allreduce on all members and returns member 0's result, which all members must have;
  // or a reduce, whose root's result it returns, and which must not change the other members'
  // tensors.
  std::vector<float> Run(const std::vector<Where>& where, std::optional<uint32_t> root = {}) {
    const auto exchanges = OpenAll();
    std::vector<Tensors> tensors;
    for (int rank = 0; rank < size(); ++rank) {
      tensors.push_back(MakeTensors(rank, where[static_cast<size_t>(rank)]));
    }
    std::vector<std::thread> members;
    for (size_t m = 0; m < exchanges.size(); ++m) {
      members.emplace_back([&, m] { Reduce(*exchanges[m], tensors[m], root); });
    }
    for (std::thread& member : members) member.join();
    if (root) return ResultAt(static_cast<int>(*root), tensors);
    std::vector<float> result;
    for (size_t i = 0; i < std::size(kCounts); ++i) {
      const auto bytes = static_cast<size_t>(kCounts[i]) * sizeof(float);
      for (const Tensors& one : tensors) {
        if (bytes > 0) {
          EXPECT_EQ(std::memcmp(one[i].out, tensors[0][i].out, bytes), 0) << "tensor " << i;
        }
      }
      result.insert(result.end(), tensors[0][i].out, tensors[0][i].out + kCounts[i]);
    }
    return result;
  }

  std::vector<float> ResultAt(int root, const std::vector<Tensors>& tensors) {
    std::vector<float> result;
    for (int rank = 0; rank < size(); ++rank) {
      const Tensors untouched = MakeTensors(rank, Where::kPrivate);
      const Tensors& own = tensors[static_cast<size_t>(rank)];
      for (size_t i = 0; i < std::size(kCounts); ++i) {
        const auto bytes = static_cast<size_t>(kCounts[i]) * sizeof(float);
        if (rank == root) result.insert(result.end(), own[i].out, own[i].out + kCounts[i]);
        if (rank == root || bytes == 0) continue;
        EXPECT_EQ(std::memcmp(own[i].in, untouched[i].in, bytes), 0) << rank << ", tensor " << i;
        if (own[i].out == own[i].in) continue;
        const std::vector<float> zeros(static_cast<size_t>(kCounts[i]));
        EXPECT_EQ(std::memcmp(own[i].out, zeros.data(), bytes), 0) << rank << ", tensor " << i;
      }
    }
    return result;
  }

  std::vector<std::unique_ptr<float[]>> private_;
};

constexpr Where kPrivate = Where::kPrivate;
constexpr Where kShared = Where::kShared;
constexpr Where kIntoShared = Where::kIntoShared;

TEST_P(DirectAllreduceTest, GivesTheBitsOfTheCopyingForm) {
  Start(3, MemoryOptions());
  const std::vector<float> copied = Run({kPrivate, kPrivate, kPrivate});
  const std::vector<Where> forms[] = {{kShared, kShared, kShared},
                                      {kIntoShared, kIntoShared, kIntoShared},
                                      {kShared, kIntoShared, kShared}};
  for (const auto& form : forms) {
    Start(3, MemoryOptions());
    EXPECT_EQ(Run(form), copied);
  }
}

TEST_P(DirectAllreduceTest, MovesNoDataThroughBanks) {
  for (const Where where : {kShared, kIntoShared}) {
    Start(3, MemoryOptions());
    Run({where, where, where});
    EXPECT_LT(At(0).counters().data_bytes_sent, 1000u);
  }
}

TEST_P(DirectAllreduceTest, OneMemberWithPrivateMemoryMakesAllOfThemCopy) {
  Start(3, MemoryOptions());
  const std::vector<float> copied = Run({kPrivate, kPrivate, kPrivate});
  for (const size_t outsider : {0, 1, 2}) {
    SCOPED_TRACE(outsider);
    Start(3, MemoryOptions());
    std::vector<Where> where = {kShared, kIntoShared, kIntoShared};
    where[outsider] = kPrivate;
    EXPECT_EQ(Run(where), copied);
  }
}

TEST_P(DirectAllreduceTest, AReduceGivesTheSameBitsToItsRootAlone) {
  Start(3, MemoryOptions());
  const std::vector<float> expected = Run({kPrivate, kPrivate, kPrivate});
  const std::vector<Where> forms[] = {{kShared, kShared, kShared},
                                      {kShared, kIntoShared, kShared},
                                      {kShared, kPrivate, kShared},
                                      {kPrivate, kPrivate, kPrivate}};
  for (const auto& form : forms) {
    for (const uint32_t root : {0u, 1u, 2u}) {
      SCOPED_TRACE(root);
      Start(3, MemoryOptions());
      EXPECT_EQ(Run(form, root), expected);
    }
  }
}

TEST_P(DirectAllreduceTest, AReduceMovesNoDataThroughBanks) {
  Start(3, MemoryOptions());
  Run({kShared, kIntoShared, kShared}, 1);
  for (int rank = 0; rank < size(); ++rank) EXPECT_LT(At(rank).counters().data_bytes_sent, 1000u);
}

INSTANTIATE_TEST_SUITE_P(All, DirectAllreduceTest, ::testing::ValuesIn(MemoryTransportKinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace horoscale
