// CUDA operations through the runtime, over the test double: results, order, lifetimes, faults.
#include <barrier>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "backends/nccl/lane_connector.h"
#include "nccl/device_ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Allreduce;
using testing::Call;
using testing::Device;
using testing::DeviceTest;
using testing::Double;
using testing::Enqueued;
using testing::kDeadlineSeconds;
using testing::Moved;
using testing::OnCuda;
using testing::Ranks;
using testing::RemoveSet;
using testing::ResultOf;
using testing::RunAll;

float SumOfRanks(int size) { return static_cast<float>(size * (size - 1) / 2); }

TEST_F(DeviceTest, AllreduceRunsOnNcclAndIsLaunchedBeforeItIsDone) {
  Ranks ranks(3);
  for (int device = 0; device < 3; ++device) Double::Get().hold(device, 1);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    std::vector<float> data(1000, static_cast<float>(rank));
    const auto operation = Enqueued(runtime, OnCuda(Allreduce(data, "x"), rank));
    ASSERT_TRUE(runtime.WaitLaunched(operation, kDeadlineSeconds).ok());
    EXPECT_FALSE(operation->done.load());
    EXPECT_FALSE(*operation->on_device->finished->IsDone());
    Double::Get().hold(rank, 0);
    ASSERT_TRUE(runtime.Wait(operation, kDeadlineSeconds).ok());
    EXPECT_EQ(data, std::vector<float>(1000, SumOfRanks(3)));
    EXPECT_NE(runtime.MetricsJson().find("\"nccl_buckets\": 1"), std::string::npos);
  });
}

// One NCCL operator applies both scale factors; it must also give the same float16 bits.
TEST_F(DeviceTest, ScaledAverageOfAGroup) {
  for (const bool buffer : {false, true}) {
    Config config;
    config.device_fusion_buffer = buffer;
    Ranks ranks(2, config);
    RunAll(ranks, [&](int rank, Runtime& runtime) {
      std::vector<std::vector<float>> data;
      const auto operation = std::make_shared<Operation>();
      operation->request.name = "group";
      Signature& signature = operation->request.signature;
      signature.reduce_op = ReduceOp::kAverage;
      signature.prescale = 4.0;
      signature.postscale = 0.5;
      for (int i = 0; i < 20; ++i) data.emplace_back(1 + i * 7, static_cast<float>(rank + i));
      for (std::vector<float>& one : data) {
        const auto count = static_cast<int64_t>(one.size());
        signature.tensors.push_back({DataType::kFloat32, {count}});
        auto* bytes = reinterpret_cast<std::byte*>(one.data());
        operation->tensors.push_back({bytes, bytes, count, 4});
      }
      ASSERT_TRUE(Call(runtime, OnCuda(operation, rank)).ok());
      for (int i = 0; i < 20; ++i) {
        const auto& one = data[static_cast<size_t>(i)];
        EXPECT_EQ(one, std::vector<float>(one.size(), 2.0f * (static_cast<float>(i) + 0.5f)));
      }
    });
  }
}

// Whether tensors are adjacent differs between ranks, so it must not affect the calls.
TEST_F(DeviceTest, TensorsAreReducedOneByOneWhereverTheyLie) {
  constexpr size_t kFloats = 64;
  Ranks ranks(2);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    std::vector<float> memory(4 * kFloats, static_cast<float>(rank));
    const size_t distance = rank == 0 ? kFloats : 2 * kFloats;
    const auto operation = std::make_shared<Operation>();
    operation->request.name = "group";
    for (size_t i = 0; i < 2; ++i) {
      operation->request.signature.tensors.push_back({DataType::kFloat32, {kFloats}});
      auto* bytes = reinterpret_cast<std::byte*>(memory.data() + i * distance);
      operation->tensors.push_back({bytes, bytes, kFloats, 4});
    }
    const Status status = Call(runtime, OnCuda(operation, rank));
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(memory[0] + memory[distance + kFloats - 1], 2.0f);
  });
}

// They would make different numbers of calls, and deadlock.
TEST(LaneConnectorTest, RanksThatFuseInDifferentWaysDoWithoutNccl) {
  const std::vector<int> ranks = {0, 3};
  std::vector<LaneHello> hellos(2);
  for (LaneHello& hello : hellos) hello.nccl_version = 22304;
  hellos[1].device.bytes[0] = std::byte{1};
  EXPECT_EQ(ObjectionTo(hellos, ranks), "");
  hellos[1].fuses = 1;
  EXPECT_EQ(ObjectionTo(hellos, ranks),
            "DEVICE_FUSION differs: rank 0 has grouped, rank 3 has buffer");
}

TEST_F(DeviceTest, MinimumGoesThroughHostMemory) {
  Ranks ranks(2);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    std::vector<float> data(100, static_cast<float>(rank + 1));
    if (rank == 1) data[5] = std::numeric_limits<float>::quiet_NaN();
    auto operation = OnCuda(Allreduce(data, "x"), rank);
    operation->request.signature.reduce_op = ReduceOp::kMin;
    ASSERT_TRUE(Call(runtime, operation).ok());
    EXPECT_EQ(data[0], 1.0f);
    EXPECT_TRUE(std::isnan(data[5]));
  });
}

// By NCCL, and through host memory with Config::backend native.
class DeviceMoveTest : public DeviceTest, public ::testing::WithParamInterface<BackendChoice> {};
INSTANTIATE_TEST_SUITE_P(Ways, DeviceMoveTest,
                         ::testing::Values(BackendChoice::kNccl, BackendChoice::kNative));

TEST_P(DeviceMoveTest, RowsOfDifferentNumber) {
  Config config;
  config.backend = GetParam();
  Ranks ranks(3, config);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    const std::vector<float> in(static_cast<size_t>(rank) * 6, static_cast<float>(rank));
    const auto gather = OnCuda(Moved(OpKind::kAllgather, in, 3), rank);
    ASSERT_TRUE(Call(runtime, gather).ok());
    std::vector<float> expected(6, 1.0f);
    expected.resize(18, 2.0f);
    EXPECT_EQ(ResultOf(*gather), expected);
    EXPECT_EQ(gather->results.front().rows, (std::vector<int64_t>{0, 2, 4}));

    const std::vector<float> sent(6, static_cast<float>(rank));
    const auto exchange = OnCuda(Moved(OpKind::kAlltoall, sent, 1), rank);
    exchange->splits = {1, 2, 3};
    ASSERT_TRUE(Call(runtime, exchange).ok());
    std::vector<float> received;
    for (int from = 0; from < 3; ++from) {
      received.resize(received.size() + static_cast<size_t>(rank) + 1, static_cast<float>(from));
    }
    EXPECT_EQ(ResultOf(*exchange), received);
  });
}

TEST_P(DeviceMoveTest, BroadcastAndReducescatterOfRowsThatDontDivide) {
  Config config;
  config.backend = GetParam();
  Ranks ranks(3, config);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    std::vector<float> data(10, static_cast<float>(rank));
    const auto broadcast = OnCuda(Allreduce(data, "b"), rank);
    broadcast->request.signature.kind = OpKind::kBroadcast;
    broadcast->request.signature.root = 1;
    ASSERT_TRUE(Call(runtime, broadcast).ok());
    EXPECT_EQ(data, std::vector<float>(10, 1.0f));

    std::vector<float> rows(14);
    std::iota(rows.begin(), rows.end(), 0.0f);
    const auto scatter = OnCuda(Moved(OpKind::kReducescatter, rows, 2), rank);
    const RowRange own = RowsOf(7, 3, static_cast<uint32_t>(rank));
    std::vector<float> result(static_cast<size_t>(own.count) * 2);
    scatter->tensors.front().out = reinterpret_cast<std::byte*>(result.data());
    ASSERT_TRUE(Call(runtime, scatter).ok());
    for (size_t i = 0; i < result.size(); ++i) {
      EXPECT_EQ(result[i], 3.0f * static_cast<float>(own.first * 2 + static_cast<int64_t>(i)));
    }
  });
}

TEST_P(DeviceMoveTest, ToAndFromARoot) {
  Config config;
  config.backend = GetParam();
  Ranks ranks(3, config);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    const bool is_root = rank == 1;
    std::vector<float> data(10, static_cast<float>(rank + 1));
    std::vector<float> result(10);
    const auto reduce = OnCuda(Allreduce(data, "r"), rank);
    reduce->request.signature.kind = OpKind::kReduce;
    reduce->request.signature.root = 1;
    reduce->tensors.front().out = is_root ? reinterpret_cast<std::byte*>(result.data()) : nullptr;
    ASSERT_TRUE(Call(runtime, reduce).ok());
    EXPECT_EQ(result, std::vector<float>(10, is_root ? 6.0f : 0.0f));
    EXPECT_EQ(data, std::vector<float>(10, static_cast<float>(rank + 1)));

    const std::vector<float> in(static_cast<size_t>(rank) * 2, static_cast<float>(rank));
    const auto gather = OnCuda(Moved(OpKind::kGather, in, 1), rank);
    gather->request.signature.root = 1;
    ASSERT_TRUE(Call(runtime, gather).ok());
    const std::vector<float> gathered = {1, 1, 2, 2, 2, 2};
    EXPECT_EQ(ResultOf(*gather), is_root ? gathered : std::vector<float>());

    const std::vector<float> whole = {0, 1, 1, 2, 2, 2};
    const auto scatter = OnCuda(Moved(OpKind::kScatter, is_root ? whole : in, 1), rank);
    scatter->request.signature.root = 1;
    if (is_root) scatter->splits = {1, 2, 3};
    ASSERT_TRUE(Call(runtime, scatter).ok());
    EXPECT_EQ(ResultOf(*scatter),
              std::vector<float>(static_cast<size_t>(rank) + 1, static_cast<float>(rank)));
  });
}

TEST_P(DeviceMoveTest, ReducescatterWithSplitsAndEveryOperator) {
  Config config;
  config.backend = GetParam();
  Ranks ranks(2, config);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    const std::vector<float> in = {1, 2, 3, static_cast<float>(4 + rank)};
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kProduct}) {
      const auto scatter = OnCuda(Moved(OpKind::kReducescatter, in, 1), rank);
      scatter->request.signature.reduce_op = op;
      scatter->request.signature.splits = scatter->splits = {1, 3};
      std::vector<float> result(rank == 0 ? 1 : 3);
      scatter->tensors.front().out = reinterpret_cast<std::byte*>(result.data());
      ASSERT_TRUE(Call(runtime, scatter).ok());
      const bool is_max = op == ReduceOp::kMax;
      const std::vector<float> last =
          is_max ? std::vector<float>{2, 3, 5} : std::vector<float>{4, 9, 20};
      EXPECT_EQ(result, rank == 0 ? std::vector<float>{1} : last);
    }
  });
}

TEST_F(DeviceTest, HostAndDeviceTensorsInOneStepAndTheirMismatch) {
  Ranks ranks(2);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    for (int step = 0; step < 20; ++step) {
      std::vector<float> host(50, 1.0f);
      std::vector<float> device(50, 2.0f);
      const auto first = Enqueued(runtime, OnCuda(Allreduce(device, "device"), rank));
      const auto second = Enqueued(runtime, Allreduce(host, "host"));
      ASSERT_TRUE(runtime.Wait(second, kDeadlineSeconds).ok());
      ASSERT_TRUE(runtime.Wait(first, kDeadlineSeconds).ok());
      EXPECT_EQ(host[7] + device[7], 6.0f);
    }
    std::vector<float> data(8);
    auto operation = Allreduce(data, "where");
    if (rank == 1) operation = OnCuda(std::move(operation), rank);
    const Status status = Call(runtime, operation);
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    for (const char* const said : {"rank 0: on the CPU", "rank 1: on the GPU"}) {
      EXPECT_NE(status.message().find(said), std::string::npos) << status.message();
    }
  });
}

TEST_F(DeviceTest, ASetUsesOneDeviceOfARankAndNoCapturingStream) {
  Ranks ranks(1);
  RunAll(ranks, [&](int, Runtime& runtime) {
    std::vector<float> data(8);
    ASSERT_TRUE(Call(runtime, OnCuda(Allreduce(data, "a"), 0)).ok());
    const Status other = runtime.Enqueue(OnCuda(Allreduce(data, "b"), 1), false);
    EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
    Double::Get().set_capturing(1);
    const auto ready = Device(0).RecordReady(nullptr);
    Double::Get().set_capturing(0);
    ASSERT_FALSE(ready.ok());
    EXPECT_NE(ready.status().message().find("CUDA graph"), std::string::npos);
  });
}

// Here a device runs one kernel at a time: ranks that launched kernels of overlapping sets in
// different orders would deadlock.
TEST_F(DeviceTest, OverlappingSetsLaunchInOneOrder) {
  constexpr int kRanks = 4;
  const std::vector<std::vector<int>> members = {{0, 1, 2, 3}, {0, 1}, {1, 2}, {2, 3}, {0, 3}};
  Double::Get().set_exclusive(1);
  std::vector<size_t> begin;
  for (int device = 0; device < kRanks; ++device) {
    begin.push_back(Double::Get().Launches(device).size());
    Double::Get().set_delay(device, 37 * device);
  }
  Ranks ranks(kRanks);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    for (size_t set = 1; set < members.size(); ++set) {
      ASSERT_TRUE(Call(runtime, AddSet(members[set])).ok());
    }
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int step = 0; step < 10; ++step) {
      std::vector<std::pair<int, std::string>> todo;
      for (size_t set = 0; set < members.size(); ++set) {
        if (std::count(members[set].begin(), members[set].end(), rank) == 0) continue;
        for (int i = 0; i < 4; ++i) todo.emplace_back(set, "t" + std::to_string(i));
      }
      std::shuffle(todo.begin(), todo.end(), random);
      std::vector<std::vector<float>> data(todo.size(), std::vector<float>(64, 1.0f));
      std::vector<OperationPtr> operations;
      for (size_t i = 0; i < todo.size(); ++i) {
        operations.push_back(
            Enqueued(runtime, OnCuda(Allreduce(data[i], todo[i].second, todo[i].first), rank)));
      }
      for (size_t i = 0; i < todo.size(); ++i) {
        const Status status = runtime.Wait(operations[i], kDeadlineSeconds);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(data[i][3],
                  static_cast<float>(members[static_cast<size_t>(todo[i].first)].size()));
      }
    }
  });
  // Two ranks have launched their common operations in the same order.
  for (int a = 0; a < kRanks; ++a) {
    for (int b = 0; b < a; ++b) {
      const auto common = [&](int rank, int other) {
        auto own = Double::Get().Launches(rank);
        auto theirs = Double::Get().Launches(other);
        own.erase(own.begin(), own.begin() + static_cast<long>(begin[static_cast<size_t>(rank)]));
        theirs.erase(theirs.begin(),
                     theirs.begin() + static_cast<long>(begin[static_cast<size_t>(other)]));
        std::erase_if(own, [&](const std::string& communicator) {
          return std::find(theirs.begin(), theirs.end(), communicator) == theirs.end();
        });
        return own;
      };
      EXPECT_EQ(common(a, b), common(b, a)) << "ranks " << a << " and " << b;
      EXPECT_FALSE(common(a, b).empty());
    }
  }
}

TEST_F(DeviceTest, CommunicatorsAreMadeLazilyAndGoWithTheirSets) {
  Ranks ranks(3);
  const int aborted = Double::Get().aborted_communicators();
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    for (int cycle = 0; cycle < 5; ++cycle) {
      const auto add = AddSet({0, 2});
      ASSERT_TRUE(Call(runtime, add).ok());
      const int id = static_cast<int>(add->result);
      std::vector<float> data(8, 1.0f);
      if (rank == 1) {
        const auto json = runtime.MetricsJson();
        EXPECT_EQ(json.find("\"nccl_buckets\": 1"), std::string::npos) << json;
      } else {
        ASSERT_TRUE(Call(runtime, OnCuda(Allreduce(data, "x", id), rank)).ok());
        EXPECT_GE(Double::Get().live_communicators(), 1);
        EXPECT_EQ(data[0], 2.0f);
      }
      ASSERT_TRUE(Call(runtime, RemoveSet(id)).ok());
    }
  });
  EXPECT_EQ(Double::Get().aborted_communicators(), aborted);
}

// The survivors' kernels wait for the lost rank until they are aborted.
TEST_F(DeviceTest, ALostRankEndsTheKernelsOfTheOthers) {
  Ranks ranks(3);
  const int aborted = Double::Get().aborted_communicators();
  Double::Get().hold(2, 1);
  std::barrier all_launched(3);
  ranks.Run([&](int rank, Runtime& runtime) {
    std::vector<float> data(1000, 1.0f);
    const auto operation = Enqueued(runtime, OnCuda(Allreduce(data, "x"), rank));
    ASSERT_TRUE(runtime.WaitLaunched(operation, kDeadlineSeconds).ok());
    all_launched.arrive_and_wait();
    if (rank == 2) return runtime.Shutdown("it is at its end");
    const Status status = runtime.Wait(operation, kDeadlineSeconds);
    EXPECT_EQ(status.code(), StatusCode::kRankFailed) << status.message();
    EXPECT_NE(status.message().find("it is at its end"), std::string::npos) << status.message();
  });
  EXPECT_GE(Double::Get().aborted_communicators(), aborted + 3);
}

TEST_F(DeviceTest, AnAsynchronousErrorFailsTheSetOnAllRanks) {
  Ranks ranks(3);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    std::vector<float> data(1000, 1.0f);
    ASSERT_TRUE(Call(runtime, OnCuda(Allreduce(data, "first"), rank)).ok());
    if (rank == 1) Double::Get().fail_next(1, 6);
    const auto operation = Enqueued(runtime, OnCuda(Allreduce(data, "second"), rank));
    const Status status = runtime.Wait(operation, kDeadlineSeconds);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("remote process exited"), std::string::npos)
        << status.message();
    EXPECT_FALSE(runtime.Enqueue(OnCuda(Allreduce(data, "third"), rank), false).ok());
  });
}

}  // namespace
}  // namespace horoscale
