// Messages of CUDA tensors: by NCCL or through the host, in order, and concurrent with device work.
#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <random>
#include <span>

#include "core/mailbox.h"
#include "nccl/device_ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Allreduce;
using testing::Barrier;
using testing::Call;
using testing::Device;
using testing::DeviceTest;
using testing::Double;
using testing::Enqueued;
using ::testing::HasSubstr;
using testing::kDeadlineSeconds;
using testing::kNotSeconds;
using testing::OnCuda;
using testing::Ranks;
using testing::RunAll;

constexpr size_t kSmall = kMaxEagerBytes / sizeof(float);
constexpr size_t kLarge = 3 * kSmall + 1;

OperationPtr MessageOf(bool is_send, std::vector<float>& data, int peer, int64_t tag) {
  auto operation = std::make_shared<Operation>();
  operation->message = std::make_unique<Message>();
  *operation->message = {is_send,
                         peer,
                         {tag, 0, DataType::kFloat32, data.size() * sizeof(float)},
                         reinterpret_cast<std::byte*>(data.data())};
  return operation;
}
OperationPtr SendOf(std::vector<float>& data, int peer, int64_t tag = 0) {
  return MessageOf(true, data, peer, tag);
}
OperationPtr RecvOf(std::vector<float>& data, int peer, int64_t tag = 0) {
  return MessageOf(false, data, peer, tag);
}

// A caller's stream that is busy until it is released.
class BusyStream {
 public:
  explicit BusyStream(int device) : device_(Device(device)) {
    const auto made = device_.CreateStream();
    EXPECT_TRUE(made.ok());
    stream_ = *made;
  }
  ~BusyStream() { device_.DestroyStream(stream_); }

  OperationPtr Attach(OperationPtr operation) const {
    operation->on_device = std::make_unique<OnDevice>();
    operation->on_device->device = &device_;
    auto ready = device_.RecordReady(stream_);
    EXPECT_TRUE(ready.ok());
    operation->on_device->ready = ready.TakeValue();
    return operation;
  }
  void Compute() const { Double::Get().block(reinterpret_cast<void*>(stream_), 1); }
  void LetGo() const { Double::Get().block(reinterpret_cast<void*>(stream_), 0); }

 private:
  CudaDevice& device_;
  CudaStreamHandle stream_ = nullptr;
};

TEST_F(DeviceTest, MessagesOfEverySizeBetweenDevicesAndHosts) {
  Ranks ranks(3);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    const int next = (rank + 1) % 3;
    const int before = (rank + 2) % 3;
    for (const size_t size : {size_t{0}, size_t{1}, kSmall, kSmall + 1, size_t{1} << 20}) {
      // Bit 0: the sender's tensor is on its device; bit 1: the receiver's.
      for (const int places : {0, 1, 2, 3}) {
        std::vector<float> out(size, static_cast<float>(rank + 1));
        std::vector<float> in(size);
        auto send = SendOf(out, next);
        auto recv = RecvOf(in, before);
        if ((places & 1) != 0) send = OnCuda(send, rank);
        if ((places & 2) != 0) recv = OnCuda(recv, rank);
        Enqueued(runtime, send);
        Enqueued(runtime, recv);
        ASSERT_TRUE(runtime.Wait(recv, kDeadlineSeconds).ok());
        ASSERT_TRUE(runtime.Wait(send, kDeadlineSeconds).ok());
        EXPECT_EQ(in, std::vector<float>(size, static_cast<float>(before + 1)));
        EXPECT_EQ(recv->result, before);
      }
    }
    std::vector<float> out(kLarge, 5.0f);
    std::vector<float> in(kLarge);
    const auto own = Enqueued(runtime, OnCuda(SendOf(out, rank, 9), rank));
    EXPECT_TRUE(Call(runtime, OnCuda(RecvOf(in, kAnyPeer, 9), rank)).ok());
    EXPECT_TRUE(runtime.Wait(own, kDeadlineSeconds).ok());
    EXPECT_EQ(in, out);
    EXPECT_TRUE(Call(runtime, Barrier("before anybody leaves")).ok());
  });
}

// A send reads what the caller's stream has computed by the time of the call. A receive writes
// after the earlier work of that stream, although it is launched before.
TEST_F(DeviceTest, MessagesKeepTheOrderOfTheirCallersStreams) {
  for (const size_t size : {kSmall, kLarge}) {
    Ranks ranks(2);
    RunAll(ranks, [&](int rank, Runtime& runtime) {
      const BusyStream stream(rank);
      std::vector<float> data(size, -1.0f);
      stream.Compute();
      if (rank == 0) {
        const auto send = Enqueued(runtime, stream.Attach(SendOf(data, 1)));
        EXPECT_EQ(runtime.WaitLaunched(send, kNotSeconds).code(), StatusCode::kTimeout);
        std::fill(data.begin(), data.end(), 2.0f);
        stream.LetGo();
        EXPECT_TRUE(runtime.Wait(send, kDeadlineSeconds).ok());
      } else {
        const auto recv = Enqueued(runtime, stream.Attach(RecvOf(data, kAnyPeer)));
        ASSERT_TRUE(runtime.WaitLaunched(recv, kDeadlineSeconds).ok());
        EXPECT_EQ(recv->result, 0);
        EXPECT_FALSE(*recv->on_device->finished->IsDone());
        EXPECT_FALSE(recv->done.load());
        EXPECT_EQ(data, std::vector<float>(size, -1.0f));
        stream.LetGo();
        EXPECT_TRUE(runtime.Wait(recv, kDeadlineSeconds).ok());
        EXPECT_EQ(data, std::vector<float>(size, 2.0f));
      }
    });
  }
}

// Messages of one tag stay in order, even if a later one is in host memory; others may overtake.
TEST_F(DeviceTest, AMessageThatIsStillComputedHoldsBackItsTagAlone) {
  Ranks ranks(2);
  std::barrier passed(2);
  RunAll(ranks, [&](int rank, Runtime& runtime) {
    std::vector<float> data[4] = {{1.0f}, {2.0f}, {3.0f}, {4.0f}};
    if (rank == 0) {
      const BusyStream stream(0);
      stream.Compute();
      const OperationPtr sends[] = {
          Enqueued(runtime, stream.Attach(SendOf(data[0], 1))),
          Enqueued(runtime, SendOf(data[1], 1)),
          Enqueued(runtime, OnCuda(SendOf(data[2], 1), 0)),
          Enqueued(runtime, OnCuda(SendOf(data[3], 1, 7), 0)),
      };
      EXPECT_TRUE(runtime.Wait(sends[3], kDeadlineSeconds).ok());
      passed.arrive_and_wait();
      EXPECT_FALSE(sends[1]->done.load());
      stream.LetGo();
      for (const OperationPtr& send : sends) {
        EXPECT_TRUE(runtime.Wait(send, kDeadlineSeconds).ok());
      }
    } else {
      std::vector<float> in(1);
      EXPECT_TRUE(Call(runtime, OnCuda(RecvOf(in, 0, 7), 1)).ok());
      EXPECT_EQ(in[0], 4.0f);
      passed.arrive_and_wait();
      for (const float expected : {1.0f, 2.0f, 3.0f}) {
        EXPECT_TRUE(Call(runtime, OnCuda(RecvOf(in, 0), 1)).ok());
        EXPECT_EQ(in[0], expected);
      }
    }
  });
}

// Ranks that launched kernels for messages and collectives in different orders would deadlock. Here
// each rank calls the collectives of two sets and messages in its own order.
TEST_F(DeviceTest, MessagesAndCollectivesOfSeveralSetsInAnyOrder) {
  Ranks ranks(3);
  Double::Get().set_exclusive(1);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    const OperationPtr added = AddSet({0, 1, 2});
    added->request.signature.distinct = true;
    ASSERT_TRUE(Call(runtime, added).ok());
    const auto set = static_cast<int>(added->result);
    for (int step = 0; step < 10; ++step) {
      std::vector<float> sums[2] = {std::vector<float>(100, 1.0f), std::vector<float>(100, 2.0f)};
      std::vector<float> out(kLarge, static_cast<float>(rank));
      std::vector<float> in(kLarge);
      std::vector<OperationPtr> operations = {
          OnCuda(Allreduce(sums[0], "first"), rank),
          OnCuda(Allreduce(sums[1], "second", set), rank),
          OnCuda(SendOf(out, (rank + 1) % 3), rank),
          OnCuda(RecvOf(in, (rank + 2) % 3), rank),
      };
      std::rotate(operations.begin(), operations.begin() + (rank + step) % 4, operations.end());
      for (const OperationPtr& operation : operations) Enqueued(runtime, operation);
      for (const OperationPtr& operation : operations) {
        ASSERT_TRUE(runtime.Wait(operation, kDeadlineSeconds).ok());
      }
      EXPECT_EQ(sums[0], std::vector<float>(100, 3.0f));
      EXPECT_EQ(sums[1], std::vector<float>(100, 6.0f));
      EXPECT_EQ(in, std::vector<float>(kLarge, static_cast<float>((rank + 2) % 3)));
    }
    EXPECT_TRUE(Call(runtime, Barrier("before anybody leaves")).ok());
  });
}

// The number of a rank's messages on a process set that NCCL has carried.
uint64_t CarriedByNccl(Runtime& runtime, int set) {
  const std::string json = runtime.MetricsJson();
  const std::string key = "\"nccl_messages\": ";
  const size_t from = json.find(key, json.find("\"" + std::to_string(set) + "\": {"));
  EXPECT_NE(from, std::string::npos) << json;
  return std::stoull(json.substr(from + key.size()));
}

// A set whose collectives all have a place in the launch order and have initialized NCCL.
int MakeReadySet(int rank, Runtime& runtime, const std::vector<int>& members) {
  const OperationPtr added = AddSet(members);
  added->request.signature.distinct = true;
  EXPECT_TRUE(Call(runtime, added).ok());
  const auto set = static_cast<int>(added->result);
  std::vector<float> data(10, 1.0f);
  if (std::find(members.begin(), members.end(), rank) != members.end()) {
    EXPECT_TRUE(Call(runtime, OnCuda(Allreduce(data, "first", set), rank)).ok());
  }
  return set;
}

OperationPtr OnSet(OperationPtr operation, int set) {
  operation->process_set_id = set;
  return operation;
}

TEST_F(DeviceTest, NcclCarriesLargeMessagesWhereTheyHaveAPlaceInTheOrder) {
  Ranks ranks(3);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    std::vector<float> out(kLarge, static_cast<float>(rank));
    std::vector<float> in(kLarge);
    const auto exchange = [&](int set, bool from_device, bool to_device) {
      auto send = OnSet(SendOf(out, (rank + 1) % 3), set);
      auto recv = OnSet(RecvOf(in, kAnyPeer), set);
      if (from_device) send = OnCuda(send, rank);
      if (to_device) recv = OnCuda(recv, rank);
      Enqueued(runtime, send);
      Enqueued(runtime, recv);
      EXPECT_TRUE(runtime.Wait(send, kDeadlineSeconds).ok()) << send->status.message();
      EXPECT_TRUE(runtime.Wait(recv, kDeadlineSeconds).ok()) << recv->status.message();
      EXPECT_EQ(recv->result, (rank + 2) % 3);
      EXPECT_EQ(in, std::vector<float>(kLarge, static_cast<float>((rank + 2) % 3)));
    };
    // NCCL is there, but the global set's collectives are launched in arrival order.
    ASSERT_TRUE(Call(runtime, OnCuda(Allreduce(in, "sum"), rank)).ok());
    exchange(0, true, true);
    EXPECT_EQ(CarriedByNccl(runtime, 0), 0U);
    const int set = MakeReadySet(rank, runtime, {0, 1, 2});
    for (const int on : {0, set}) {
      exchange(on, true, true);
      EXPECT_EQ(CarriedByNccl(runtime, on), 2U);
      exchange(on, true, false);
      exchange(on, false, true);
      EXPECT_EQ(CarriedByNccl(runtime, on), 2U);
    }
    const auto own = Enqueued(runtime, OnCuda(OnSet(SendOf(out, rank, 3), set), rank));
    EXPECT_TRUE(Call(runtime, OnCuda(OnSet(RecvOf(in, rank, 3), set), rank)).ok());
    EXPECT_TRUE(runtime.Wait(own, kDeadlineSeconds).ok());
    EXPECT_EQ(CarriedByNccl(runtime, set), 2U);
    EXPECT_TRUE(Call(runtime, Barrier("before anybody leaves")).ok());
  });
}

// Including sizes that are sent eagerly between hosts if the tensor is in host memory.
TEST_F(DeviceTest, NcclCarriesMessagesBetweenHosts) {
  static_assert(kLarge * sizeof(float) <= kMaxEagerBytesBetweenHosts);
  Ranks ranks(2, {}, {0, 1});
  RunAll(ranks, [](int rank, Runtime& runtime) {
    const int set = MakeReadySet(rank, runtime, {0, 1});
    std::vector<float> data(kLarge, rank == 0 ? 2.0f : -1.0f);
    auto message = rank == 0 ? SendOf(data, 1) : RecvOf(data, 0);
    EXPECT_TRUE(Call(runtime, OnCuda(OnSet(std::move(message), set), rank)).ok());
    EXPECT_EQ(data, std::vector<float>(kLarge, 2.0f));
    EXPECT_EQ(CarriedByNccl(runtime, set), 1U);
    EXPECT_TRUE(Call(runtime, Barrier("before anybody leaves")).ok());
  });
}

// Each device runs one kernel at a time, in launch order: two ranks that launched messages, or
// messages and collectives of three sets, in different orders would deadlock.
TEST_F(DeviceTest, MessagesByNcclAndCollectivesOfSeveralSetsInAnyOrder) {
  Ranks ranks(3);
  Double::Get().set_exclusive(1);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    const int sets[] = {MakeReadySet(rank, runtime, {0, 1, 2}), MakeReadySet(rank, runtime, {0, 1}),
                        MakeReadySet(rank, runtime, {1, 2})};
    std::minstd_rand random(static_cast<uint32_t>(rank) + 1);
    const std::vector<std::pair<int, int>> pairs = {{0, 1}, {1, 0}, {1, 2}, {2, 0}, {0, 2}, {2, 1}};
    for (int step = 0; step < 15; ++step) {
      std::vector<std::vector<float>> data;
      data.reserve(40);
      std::vector<OperationPtr> operations;
      const auto add = [&](OperationPtr operation, int set) {
        operations.push_back(OnCuda(OnSet(std::move(operation), set), rank));
      };
      const auto is_in = [&](int set) { return set < 2 || (set == 2 ? rank < 2 : rank > 0); };
      for (int set = 0; set < 4; ++set) {  // 0: the global set
        if (!is_in(set)) continue;
        const int id = set == 0 ? 0 : sets[set - 1];
        data.emplace_back(100, 1.0f);
        add(Allreduce(data.back(), "sum." + std::to_string(step), id), id);
        for (int64_t tag = 0; tag < static_cast<int64_t>(pairs.size()); ++tag) {
          const auto [from, to] = pairs[static_cast<size_t>(tag)];
          const bool both =
              set < 2 || (set == 2 ? from + to == 1 : from + to == 3 && from * to == 2);
          if (!both || (rank != from && rank != to)) continue;
          data.emplace_back(kLarge, rank == from ? static_cast<float>(100 * set + step) : -1.0f);
          add(rank == from ? SendOf(data.back(), to, tag) : RecvOf(data.back(), from, tag), id);
        }
      }
      std::shuffle(operations.begin(), operations.end(), random);
      for (const OperationPtr& operation : operations) Enqueued(runtime, operation);
      for (const OperationPtr& operation : operations) {
        const Status status = runtime.Wait(operation, kDeadlineSeconds);
        ASSERT_TRUE(status.ok()) << operation->DisplayName() << status.message();
        if (operation->message == nullptr) continue;
        const auto* floats = reinterpret_cast<const float*>(operation->message->memory);
        const auto at = std::find(std::begin(sets), std::end(sets), operation->process_set_id);
        const auto set = at == std::end(sets) ? 0 : 1 + (at - std::begin(sets));
        EXPECT_EQ(floats[kLarge - 1], static_cast<float>(100 * set + step));
      }
    }
    EXPECT_GT(CarriedByNccl(runtime, sets[0]), 0U);
    EXPECT_TRUE(Call(runtime, Barrier("before anybody leaves")).ok());
  });
}

// The calls in each of a rank's kernels while two ranks send each other messages, all of which are
// agreed on before the second is launched: one from rank 0, then `messages` each way.
std::vector<std::string> CallsOfCrossing(int rank, Runtime& runtime, int set, size_t messages) {
  std::vector<float> out(kLarge, static_cast<float>(rank));
  std::vector<std::vector<float>> in(messages + 1, std::vector<float>(kLarge, -1.0f));
  const size_t before = Double::Get().Calls(rank).size();
  std::vector<OperationPtr> operations;
  const auto begin = [&](OperationPtr message) {
    operations.push_back(Enqueued(runtime, OnCuda(OnSet(std::move(message), set), rank)));
  };
  // All others are agreed on while NCCL is busy with the first. After two barriers each rank has
  // received all earlier frames of the other.
  Double::Get().keep_busy(rank, 1);
  begin(rank == 0 ? SendOf(out, 1, 0) : RecvOf(in[0], 0, 0));
  const auto meet = [&] {
    for (const char* name : {"offered", "proposed", "agreed"}) {
      EXPECT_TRUE(Call(runtime, Barrier(name)).ok());
    }
  };
  meet();
  // One pair after the other, so that their turns alternate between the directions.
  for (size_t i = 1; i <= messages; ++i) {
    begin(SendOf(out, 1 - rank, static_cast<int64_t>(i)));
    begin(RecvOf(in[i], 1 - rank, static_cast<int64_t>(i)));
    meet();
  }
  Double::Get().keep_busy(rank, 0);
  for (const OperationPtr& operation : operations) {
    EXPECT_TRUE(runtime.Wait(operation, kDeadlineSeconds).ok()) << operation->status.message();
  }
  for (size_t i = 1; i <= messages; ++i) {
    EXPECT_EQ(in[i], std::vector<float>(kLarge, static_cast<float>(1 - rank)));
  }
  std::vector<std::string> calls = Double::Get().Calls(rank);
  calls.erase(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(before));
  for (std::string& call : calls) {
    if (call == "Recv+Send") call = "Send+Recv";
  }
  return calls;
}

// Messages that are due together share one launch. Two messages each way take two launches: the
// second ones wait for the first ones in NCCL.
TEST_F(DeviceTest, MessagesThatCrossAreOneLaunch) {
  Ranks ranks(2);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    const int set = MakeReadySet(rank, runtime, {0, 1});
    std::vector<float> data(kLarge);
    for (const int sender : {0, 1}) {  // connects them
      auto message = rank == sender ? SendOf(data, 1 - rank) : RecvOf(data, 1 - rank);
      ASSERT_TRUE(Call(runtime, OnCuda(OnSet(std::move(message), set), rank)).ok());
    }
    EXPECT_THAT(CallsOfCrossing(rank, runtime, set, 2),
                ::testing::ElementsAre(rank == 0 ? "Send" : "Recv", "Send+Recv", "Send+Recv"));
    EXPECT_TRUE(Call(runtime, Barrier("before anybody leaves")).ok());
  });
}

// NCCL connects two ranks within a group call, which must contain the same calls on both.
TEST_F(DeviceTest, TheFirstMessageInEachDirectionIsLaunchedAlone) {
  Ranks ranks(2);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    const int set = MakeReadySet(rank, runtime, {0, 1});
    const std::string twice = rank == 0 ? "Send" : "Recv";
    const std::string once = rank == 0 ? "Recv" : "Send";
    EXPECT_THAT(CallsOfCrossing(rank, runtime, set, 1),
                ::testing::UnorderedElementsAre(twice, twice, once));
    EXPECT_TRUE(Call(runtime, Barrier("before anybody leaves")).ok());
  });
}

// Its peer's kernel ends with the communicator.
TEST_F(DeviceTest, ALostRankEndsMessagesThatNcclCarries) {
  Ranks ranks(3);
  std::barrier launched(3);
  const int aborted = Double::Get().aborted_communicators();
  ranks.Run([&](int rank, Runtime& runtime) {
    const int set = MakeReadySet(rank, runtime, {0, 1, 2});
    launched.arrive_and_wait();
    Double::Get().hold(0, 1);
    launched.arrive_and_wait();
    std::vector<float> data(kLarge, static_cast<float>(rank));
    OperationPtr operation;
    if (rank < 2) {
      auto message = rank == 0 ? SendOf(data, 1) : RecvOf(data, 0);
      operation = Enqueued(runtime, OnCuda(OnSet(std::move(message), set), rank));
      ASSERT_TRUE(runtime.WaitLaunched(operation, kDeadlineSeconds).ok());
      EXPECT_FALSE(operation->done.load());
    }
    launched.arrive_and_wait();
    if (rank == 2) return runtime.Shutdown("out of luck");
    EXPECT_EQ(runtime.Wait(operation, kDeadlineSeconds).code(), StatusCode::kRankFailed);
    runtime.Shutdown("");
  });
  EXPECT_GT(Double::Get().aborted_communicators(), aborted);
}

TEST_F(DeviceTest, AnErrorOfNcclInAMessageLosesItsSet) {
  Ranks ranks(2);
  std::barrier ready(2);
  ranks.Run([&](int rank, Runtime& runtime) {
    const int set = MakeReadySet(rank, runtime, {0, 1});
    if (rank == 0) Double::Get().fail_next(0, 6);
    ready.arrive_and_wait();
    std::vector<float> data(kLarge);
    auto message = rank == 0 ? SendOf(data, 1) : RecvOf(data, 0);
    const auto operation = Enqueued(runtime, OnCuda(OnSet(std::move(message), set), rank));
    const Status status = runtime.Wait(operation, kDeadlineSeconds);
    EXPECT_THAT(status.message(), HasSubstr("network error")) << status.message();
    EXPECT_TRUE(Call(runtime, Barrier("of the other set")).ok());
    runtime.Shutdown("");
  });
}

TEST_F(DeviceTest, AMismatchOfMessagesConcernsTheTwoRanksAlone) {
  Ranks ranks(2);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    std::vector<float> data(kLarge, 1.0f);
    std::vector<float> less(kLarge - 1);
    const Status status =
        Call(runtime, rank == 0 ? OnCuda(SendOf(data, 1), 0) : OnCuda(RecvOf(less, 0), 1));
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
    EXPECT_EQ(status.detail().ranks, (std::vector<int>{0, 1}));
    ASSERT_TRUE(Call(runtime, Barrier("afterwards")).ok());
    std::vector<float> more(kLarge);
    EXPECT_TRUE(
        Call(runtime, rank == 0 ? OnCuda(SendOf(data, 1), 0) : OnCuda(RecvOf(more, 0), 1)).ok());
    EXPECT_EQ(more, rank == 1 ? data : std::vector<float>(kLarge));
  });
}

// A failed copy is an error on the two ranks only. The sizes are used once, because pinned memory
// is kept.
TEST_F(DeviceTest, PinnedMemoryThatRunsOutConcernsTheTwoRanksAlone) {
  constexpr size_t kOnce = size_t{9} << 20;
  Ranks ranks(2);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    const int set = MakeReadySet(rank, runtime, {0, 1});
    std::vector<float> data(kOnce, 1.0f);
    std::vector<float> small(kSmall, 2.0f);
    const auto attempt = [&](bool from_device, bool to_device) {
      ASSERT_TRUE(Call(runtime, Barrier("before")).ok());
      if (rank == 0) Double::Get().refuse_pinned(1);
      ASSERT_TRUE(Call(runtime, Barrier("refused")).ok());
      auto operation = OnSet(rank == 0 ? SendOf(data, 1) : RecvOf(data, 0), set);
      if (rank == 0 ? from_device : to_device) operation = OnCuda(operation, rank);
      const Status status = Call(runtime, operation);
      // It has been matched with its receive, and would have been copied in full.
      if (rank == 1 || from_device) {
        EXPECT_THAT(status.message(), HasSubstr("cuMemHostAlloc")) << status.message();
        EXPECT_THAT(status.message(), HasSubstr(operation->DisplayName()));
        EXPECT_NE(status.code(), StatusCode::kRankFailed);
      } else {
        EXPECT_TRUE(status.ok()) << status.message();
      }
      if (rank == 1 && from_device) {
        EXPECT_THAT(status.message(), HasSubstr("rank 0 could not send it"));
      }
      ASSERT_TRUE(Call(runtime, Barrier("after")).ok());
      if (rank == 0) Double::Get().refuse_pinned(0);
      ASSERT_TRUE(Call(runtime, Barrier("there is some again")).ok());
      const Status next =
          Call(runtime, OnSet(rank == 0 ? SendOf(small, 1) : RecvOf(small, 0), set));
      EXPECT_TRUE(next.ok()) << next.message();
    };
    attempt(true, false);  // offered for NCCL, but requested in frames
    attempt(false, true);  // the receiver has no room
  });
}

// Until then a device may write to the tensor.
TEST_F(DeviceTest, AReceiveThatIsLaunchedEndsWithItsCopyAlsoWhenTheSetFails) {
  Ranks ranks(2);
  std::barrier launched(2);
  ranks.Run([&](int rank, Runtime& runtime) {
    std::vector<float> data(kSmall, static_cast<float>(rank));
    if (rank == 0) {
      ASSERT_TRUE(Call(runtime, OnCuda(SendOf(data, 1), 0)).ok());
      launched.arrive_and_wait();
      runtime.Shutdown("out of luck");
      return;
    }
    const BusyStream stream(1);
    stream.Compute();
    const auto recv = Enqueued(runtime, stream.Attach(RecvOf(data, 0)));
    std::vector<float> never(kSmall);
    const auto waiting = Enqueued(runtime, OnCuda(RecvOf(never, 0, 3), 1));
    const auto copied = Enqueued(runtime, stream.Attach(SendOf(never, 0, 4)));
    ASSERT_TRUE(runtime.WaitLaunched(recv, kDeadlineSeconds).ok());
    launched.arrive_and_wait();
    EXPECT_EQ(runtime.Wait(waiting, kDeadlineSeconds).code(), StatusCode::kRankFailed);
    EXPECT_FALSE(recv->done.load());
    EXPECT_FALSE(copied->done.load());
    stream.LetGo();
    EXPECT_TRUE(runtime.Wait(recv, kDeadlineSeconds).ok());
    EXPECT_EQ(data, std::vector<float>(kSmall, 0.0f));
    EXPECT_EQ(runtime.Wait(copied, kDeadlineSeconds).code(), StatusCode::kRankFailed);
    runtime.Shutdown("");
  });
}

TEST_F(DeviceTest, WhatHadComeBeforeALossIsReceivedOnTheDevice) {
  Ranks ranks(2);
  ranks.Run([&](int rank, Runtime& runtime) {
    std::vector<float> data(kSmall, static_cast<float>(rank));
    if (rank == 0) {
      ASSERT_TRUE(Call(runtime, OnCuda(SendOf(data, 1), 0)).ok());
      runtime.Shutdown("out of luck");
      return;
    }
    std::vector<float> never(kSmall);
    EXPECT_EQ(Call(runtime, OnCuda(RecvOf(never, 0, 3), 1)).code(), StatusCode::kRankFailed);
    EXPECT_TRUE(Call(runtime, OnCuda(RecvOf(data, 0), 1)).ok());
    EXPECT_EQ(data, std::vector<float>(kSmall, 0.0f));
    EXPECT_THAT(Call(runtime, OnCuda(RecvOf(data, 0), 1)).message(), HasSubstr("out of luck"));
    runtime.Shutdown("");
  });
}

// Callers whose streams wait for the message leave without any other wait.
TEST_F(DeviceTest, ACleanShutdownWaitsForWhatIsReceived) {
  Ranks ranks(2);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    std::vector<float> data(kLarge, static_cast<float>(rank));
    if (rank == 0) {
      EXPECT_TRUE(Call(runtime, OnCuda(SendOf(data, 1), 0)).ok());
    } else {
      const BusyStream stream(1);
      stream.Compute();
      const auto recv = Enqueued(runtime, stream.Attach(RecvOf(data, 0)));
      ASSERT_TRUE(runtime.WaitLaunched(recv, kDeadlineSeconds).ok());
      std::thread later([&] { stream.LetGo(); });
      runtime.Shutdown("");
      later.join();
      EXPECT_TRUE(recv->done.load());
      EXPECT_TRUE(recv->status.ok()) << recv->status.message();
      EXPECT_EQ(data, std::vector<float>(kLarge, 0.0f));
    }
  });
}

// Members alone can't agree on a launch order; messages don't need one.
TEST_F(DeviceTest, MessagesOnASetMadeByItsMembers) {
  Ranks ranks(2);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    auto made = std::make_shared<Operation>();
    made->request.signature.kind = OpKind::kAddProcessSet;
    made->new_set = std::make_unique<NewSet>(NewSet{{0, 1}, true, ""});
    ASSERT_TRUE(Call(runtime, made).ok());
    std::vector<float> data(kLarge, static_cast<float>(rank));
    auto message = MessageOf(rank == 0, data, 1 - rank, 0);
    message->process_set_id = static_cast<int>(made->result);
    const Status status = Call(runtime, OnCuda(message, rank));
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(data, std::vector<float>(kLarge, 0.0f));
  });
}

}  // namespace
}  // namespace horoscale
