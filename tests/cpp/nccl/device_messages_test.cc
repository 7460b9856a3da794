// Messages of CUDA tensors: through the host's memory, in order, and beside what devices compute.
#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <span>

#include "core/mailbox.h"
#include "nccl/device_ranks.h"

namespace horoscale {
namespace {

using ::testing::HasSubstr;
using testing::AddSet;
using testing::Allreduce;
using testing::Barrier;
using testing::Call;
using testing::Device;
using testing::DeviceTest;
using testing::Double;
using testing::Enqueued;
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

// A stream of a caller that computes until it is let go.
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

// What is sent is what the caller's stream has computed by the call; what comes is written after
// what that stream still does with the tensor, and the receive is launched before.
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

// Those of one tag come in order, also where a later one is in the host's memory; others pass.
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

// Ranks that launched kernels for messages in other orders than those of collectives would wait for
// each other: here collectives of two sets and messages are called in another order on each rank.
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
  });
}

TEST_F(DeviceTest, AMismatchOfMessagesConcernsTheTwoRanksAlone) {
  Ranks ranks(2);
  RunAll(ranks, [](int rank, Runtime& runtime) {
    std::vector<float> data(kLarge, 1.0f);
    std::vector<float> less(kLarge - 1);
    const Status status = Call(runtime, rank == 0 ? OnCuda(SendOf(data, 1), 0)
                                                  : OnCuda(RecvOf(less, 0), 1));
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
    EXPECT_EQ(status.detail().ranks, (std::vector<int>{0, 1}));
    ASSERT_TRUE(Call(runtime, Barrier("afterwards")).ok());
    std::vector<float> more(kLarge);
    EXPECT_TRUE(Call(runtime, rank == 0 ? OnCuda(SendOf(data, 1), 0)
                                        : OnCuda(RecvOf(more, 0), 1))
                    .ok());
    EXPECT_EQ(more, rank == 1 ? data : std::vector<float>(kLarge));
  });
}

// A device may write to the tensor until then.
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

// Callers whose streams wait for the message have nothing else to wait for before they leave.
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

// Members alone can't agree on the order of launches, which messages do without.
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
