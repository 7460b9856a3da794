// Allreduce in place of shared memory: the bits of the copying forms, without their copies.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
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
// Elements of the tensors of one fused operation: none, few, odd, more than a block and a step.
constexpr int64_t kCounts[] = {5, 0, 100'003, 1, 16, 40'000, 7'777};

class DirectAllreduceTest : public TransportTest {
 protected:
  using Tensors = std::vector<float*>;

  // The tensors of a member, with values of its own, in shared memory or in private.
  Tensors MakeTensors(int rank, bool shared) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::uniform_real_distribution<float> values(-1e3f, 1e3f);
    Tensors tensors;
    for (const int64_t count : kCounts) {
      if (shared) {
        const auto memory = At(rank).AllocateShared(static_cast<size_t>(count) * sizeof(float));
        EXPECT_TRUE(memory.ok());
        tensors.push_back(reinterpret_cast<float*>(*memory));
      } else {
        private_.push_back(std::make_unique<float[]>(static_cast<size_t>(count)));
        tensors.push_back(private_.back().get());
      }
      for (int64_t i = 0; i < count; ++i) tensors.back()[i] = values(random);
    }
    return tensors;
  }

  void Allreduce(Exchange& exchange, const Tensors& tensors) {
    AllreduceArgs args{kAverageOf3, {}, {}};
    for (size_t i = 0; i < tensors.size(); ++i) {
      auto* const bytes = reinterpret_cast<std::byte*>(tensors[i]);
      args.segments.push_back({bytes, bytes, kCounts[i] * static_cast<int64_t>(sizeof(float))});
    }
    const std::unique_ptr<Collective> collective = MakeAllreduce(exchange, std::move(args));
    const Deadline deadline = Deadline::After(kPatience);
    for (;;) {
      const Result<Progress> progress = collective->Step();
      ASSERT_TRUE(progress.ok());
      if (*progress == Progress::kDone) return;
      ASSERT_FALSE(deadline.Passed());
      if (*progress == Progress::kIdle) std::this_thread::yield();
    }
  }

  // Runs one allreduce on all members and returns member 0's result, which must be everybody's.
  std::vector<float> Run(const std::vector<bool>& shared) {
    const auto exchanges = OpenAll();
    std::vector<Tensors> tensors;
    for (int rank = 0; rank < size(); ++rank) {
      tensors.push_back(MakeTensors(rank, shared[static_cast<size_t>(rank)]));
    }
    std::vector<std::thread> members;
    for (size_t m = 0; m < exchanges.size(); ++m) {
      members.emplace_back([&, m] { Allreduce(*exchanges[m], tensors[m]); });
    }
    for (std::thread& member : members) member.join();
    std::vector<float> result;
    for (size_t i = 0; i < std::size(kCounts); ++i) {
      const auto bytes = static_cast<size_t>(kCounts[i]) * sizeof(float);
      for (const Tensors& one : tensors) {
        if (bytes > 0) {
          EXPECT_EQ(std::memcmp(one[i], tensors[0][i], bytes), 0) << "tensor " << i;
        }
      }
      result.insert(result.end(), tensors[0][i], tensors[0][i] + kCounts[i]);
    }
    return result;
  }

  std::vector<std::unique_ptr<float[]>> private_;
};

TEST_P(DirectAllreduceTest, GivesTheBitsOfTheCopyingForm) {
  Start(3, MemoryOptions());
  const std::vector<float> copied = Run({false, false, false});
  Start(3, MemoryOptions());
  EXPECT_EQ(Run({true, true, true}), copied);
}

TEST_P(DirectAllreduceTest, MovesNoData) {
  Start(3, MemoryOptions());
  Run({true, true, true});
  EXPECT_LT(At(0).counters().data_bytes_sent, 1000u);
}

TEST_P(DirectAllreduceTest, OneMemberWithPrivateMemoryMakesAllOfThemCopy) {
  Start(3, MemoryOptions());
  const std::vector<float> copied = Run({false, false, false});
  for (const size_t outsider : {0, 1, 2}) {
    SCOPED_TRACE(outsider);
    Start(3, MemoryOptions());
    std::vector<bool> shared(3, true);
    shared[outsider] = false;
    EXPECT_EQ(Run(shared), copied);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DirectAllreduceTest, ::testing::ValuesIn(MemoryTransportKinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace horoscale
