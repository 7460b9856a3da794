// Sends and receives of whole runtimes: ranks as threads, and random jobs in one thread.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "core/mailbox.h"
#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::AddSet;
using testing::Call;
using testing::Enqueued;
using testing::kDeadlineSeconds;
using testing::MessageOf;
using testing::Ranks;
using testing::RecvOf;
using testing::RemoveSet;
using testing::SendOf;

using Bytes = std::vector<std::byte>;

void FillWith(std::span<std::byte> memory, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  for (std::byte& one : memory) one = static_cast<std::byte>(random() >> 8);
}
Bytes FilledWith(size_t bytes, uint32_t seed) {
  Bytes memory(bytes);
  FillWith(memory, seed);
  return memory;
}

constexpr size_t kSizes[] = {0, 1, 4096, kMaxEagerBytes, kMaxEagerBytes + 1, 3 * (1 << 20) + 7};

TEST(MessagesTest, EverySizeInBothDirectionsAtOnce) {
  Ranks ranks(2);
  ranks.Run([](int rank, Runtime& runtime) {
    for (const size_t size : kSizes) {
      Bytes out = FilledWith(size, static_cast<uint32_t>(rank));
      Bytes in(size);
      const auto send = Enqueued(runtime, SendOf(out, 1 - rank));
      const auto recv = Enqueued(runtime, RecvOf(in, 1 - rank));
      EXPECT_TRUE(runtime.Wait(send, kDeadlineSeconds).ok());
      EXPECT_TRUE(runtime.Wait(recv, kDeadlineSeconds).ok());
      EXPECT_EQ(in, FilledWith(size, static_cast<uint32_t>(1 - rank))) << size;
      EXPECT_EQ(recv->result, 1 - rank);
    }
  });
}

TEST(MessagesTest, ToItselfBeforeAndAfterTheReceive) {
  Ranks ranks(1);
  Runtime& runtime = ranks.runtime(0);
  for (const size_t size : kSizes) {
    Bytes out = FilledWith(size, 3);
    Bytes first(size);
    Bytes second(size);
    const auto early = Enqueued(runtime, RecvOf(first, 0));
    const auto send = Enqueued(runtime, SendOf(out, 0));
    EXPECT_TRUE(runtime.Wait(early, kDeadlineSeconds).ok());
    EXPECT_TRUE(runtime.Wait(send, kDeadlineSeconds).ok());
    const auto again = Enqueued(runtime, SendOf(out, 0));
    EXPECT_TRUE(Call(runtime, RecvOf(second, kAnyPeer)).ok());
    EXPECT_TRUE(runtime.Wait(again, kDeadlineSeconds).ok());
    EXPECT_EQ(first, out);
    EXPECT_EQ(second, out);
  }
}

TEST(MessagesTest, AMismatchConcernsTheTwoRanksAlone) {
  Ranks ranks(3);
  ranks.Run([](int rank, Runtime& runtime) {
    Bytes memory(100'000);
    Bytes less(50'000);
    if (rank == 0) {
      const Status status = Call(runtime, SendOf(memory, 1, 5));
      EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
      EXPECT_EQ(status.detail().ranks, (std::vector<int>{0, 1}));
    }
    if (rank == 1) {
      const Status status = Call(runtime, RecvOf(less, 0, 5));
      EXPECT_EQ(status.code(), StatusCode::kMismatch);
      EXPECT_THAT(status.message(), ::testing::HasSubstr("100000 bytes"));
      EXPECT_THAT(status.message(), ::testing::HasSubstr("50000 bytes"));
      EXPECT_THAT(status.message(), ::testing::HasSubstr("tag 5"));
    }
    EXPECT_TRUE(Call(runtime, testing::Barrier("afterwards")).ok());
    if (rank == 0) {
      EXPECT_TRUE(Call(runtime, SendOf(memory, 1, 5)).ok());
      EXPECT_TRUE(Call(runtime, SendOf(std::span(less).first(10), 1, 5)).ok());
    }
    if (rank == 1) {
      EXPECT_TRUE(Call(runtime, RecvOf(memory, 0, 5)).ok());
      const Status status = Call(runtime, RecvOf(std::span(less).first(11), 0, 5));
      EXPECT_EQ(status.code(), StatusCode::kMismatch);
    }
  });
}

TEST(MessagesTest, WhatNobodyReceivesHoldsUpNobodyElse) {
  Ranks ranks(2);
  ranks.Run([](int rank, Runtime& runtime) {
    constexpr int kMessages = 300;
    std::vector<Bytes> memory(kMessages, Bytes(10'000));
    std::vector<OperationPtr> operations;
    for (Bytes& one : memory) {
      if (rank == 0) operations.push_back(Enqueued(runtime, SendOf(one, 1, 1)));
    }
    std::vector<float> data(100'000, 1.0F);
    EXPECT_TRUE(Call(runtime, testing::Allreduce(data, "beside")).ok());
    if (rank == 0) {
      const auto done = std::count_if(operations.begin(), operations.end(),
                                      [](const auto& one) { return one->done.load(); });
      EXPECT_LE(done, static_cast<long>(kEagerCreditBytes / 10'000));
    }
    Bytes late(8);
    const auto overtakes = rank == 0 ? SendOf(late, 1, 2) : RecvOf(late, 0, 2);
    EXPECT_TRUE(Call(runtime, overtakes).ok());
    for (Bytes& one : memory) {
      const auto recv = RecvOf(one, 0, 1);
      EXPECT_TRUE(rank == 0 || Call(runtime, recv).ok());
    }
    for (const auto& one : operations) EXPECT_TRUE(runtime.Wait(one, kDeadlineSeconds).ok());
  });
}

TEST(MessagesTest, OffersBeyondTheBoundAreHeldBackInOrder) {
  Ranks ranks(2);
  // The first sends use up the credit.
  constexpr size_t kMessages = kMaxOffers + kEagerCreditBytes / kEagerOverheadBytes + 50;
  ranks.Run([](int rank, Runtime& runtime) {
    Bytes sent = FilledWith(kMessages, 1);
    Bytes received(kMessages);
    std::vector<OperationPtr> operations;
    for (size_t i = 0; i < kMessages; ++i) {
      const auto byte = std::span(rank == 0 ? sent : received).subspan(i, 1);
      operations.push_back(rank == 0 ? SendOf(byte, 1) : RecvOf(byte, 0));
    }
    // Nothing is received before all of it has been sent.
    const auto start = [&] {
      for (const auto& operation : operations) Enqueued(runtime, operation);
    };
    if (rank == 0) start();
    ASSERT_TRUE(Call(runtime, testing::Barrier("all are sent")).ok());
    if (rank == 1) start();
    for (const auto& operation : operations) {
      ASSERT_TRUE(runtime.Wait(operation, kDeadlineSeconds).ok());
    }
    EXPECT_TRUE(rank == 0 || received == sent);
  });
}

TEST(MessagesTest, WhatWasSentBeforeARankLeftIsReceivedAfterwards) {
  Ranks ranks(2);
  Bytes memory = FilledWith(5000, 1);
  ASSERT_TRUE(Call(ranks.runtime(0), SendOf(memory, 1)).ok());
  ranks.runtime(0).Shutdown("");
  Bytes other(10);
  const Status lost = Call(ranks.runtime(1), RecvOf(other, 0, 9));
  EXPECT_EQ(lost.code(), StatusCode::kRankFailed) << lost.message();
  Bytes received(5000);
  EXPECT_TRUE(Call(ranks.runtime(1), RecvOf(received, 0)).ok());
  EXPECT_EQ(received, memory);
  EXPECT_EQ(Call(ranks.runtime(1), RecvOf(received, 0)).code(), StatusCode::kRankFailed);
  EXPECT_EQ(Call(ranks.runtime(1), SendOf(received, 0)).code(), StatusCode::kRankFailed);
}

TEST(MessagesTest, PendingOnesEndWithTheRankOrTheRuntime) {
  Ranks ranks(3);
  Bytes large(100'000);
  Bytes in(100'000);
  const auto send = Enqueued(ranks.runtime(0), SendOf(large, 1));
  const auto recv = Enqueued(ranks.runtime(0), RecvOf(in, 1));
  const auto any = Enqueued(ranks.runtime(0), RecvOf(in, kAnyPeer, 4));
  const auto own = Enqueued(ranks.runtime(1), RecvOf(in, 2, 4));
  ranks.runtime(1).Shutdown("it was told to");
  for (const auto& operation : {send, recv, any}) {
    const Status status = ranks.runtime(0).Wait(operation, kDeadlineSeconds);
    EXPECT_EQ(status.code(), StatusCode::kRankFailed) << status.message();
    EXPECT_EQ(status.detail().ranks, std::vector<int>{1});
    EXPECT_EQ(status.detail().tensor, operation->DisplayName());
  }
  EXPECT_EQ(own->status.code(), StatusCode::kShutdown);
}

TEST(MessagesTest, GoOnAmongTheOthersWhenARankHasLeft) {
  Ranks ranks(3);
  Runtime& first = ranks.runtime(0);
  Runtime& second = ranks.runtime(1);
  Bytes large = FilledWith(3 << 20, 1);
  Bytes in(large.size());
  Bytes in_any(large.size());
  const auto recv = Enqueued(first, RecvOf(in, 1));
  const auto from_any = Enqueued(first, RecvOf(in_any, kAnyPeer, 1));
  const auto from_leaver = Enqueued(first, RecvOf(in_any, 2, 2));
  const auto collective = Enqueued(first, testing::Barrier("together"));
  ranks.runtime(2).Shutdown("");
  for (const auto& operation : {from_any, from_leaver, collective}) {
    const Status status = first.Wait(operation, kDeadlineSeconds);
    EXPECT_EQ(status.code(), StatusCode::kRankFailed) << status.message();
    EXPECT_EQ(status.detail().ranks, std::vector<int>{2});
  }
  EXPECT_EQ(Call(first, SendOf(in_any, 2)).code(), StatusCode::kRankFailed);
  EXPECT_EQ(Call(first, testing::Barrier("again")).code(), StatusCode::kRankFailed);
  EXPECT_FALSE(recv->done.load());

  const auto sent = Enqueued(second, SendOf(large, 0));
  EXPECT_TRUE(first.Wait(recv, kDeadlineSeconds).ok());
  EXPECT_TRUE(second.Wait(sent, kDeadlineSeconds).ok());
  EXPECT_EQ(in, large);

  // A receive from any rank takes a message that has arrived, even as an offer.
  Bytes small = FilledWith(8, 2);
  const auto offered = Enqueued(second, SendOf(large, 0, 1));
  EXPECT_TRUE(Call(second, SendOf(small, 0, 2)).ok());
  EXPECT_TRUE(Call(first, RecvOf(small, 1, 2)).ok());  // so the offer has arrived, too
  EXPECT_TRUE(Call(first, RecvOf(in_any, kAnyPeer, 1)).ok());
  EXPECT_TRUE(second.Wait(offered, kDeadlineSeconds).ok());
  EXPECT_EQ(in_any, large);
}

// A receive from any rank reports a departure once per tag. A message on its way to the receive
// that failed goes to the next one.
TEST(MessagesTest, AReceiveOfAnyIsOfThoseThatAreLeftWhenItIsCalledAgain) {
  Ranks ranks(3);
  Runtime& first = ranks.runtime(0);
  Runtime& second = ranks.runtime(1);
  Bytes in(100'000);
  const auto pending = Enqueued(first, RecvOf(in, kAnyPeer, 1));
  ranks.runtime(2).Shutdown("");
  EXPECT_EQ(first.Wait(pending, kDeadlineSeconds).code(), StatusCode::kRankFailed);
  for (const int64_t tag : {1, 2}) {
    if (tag == 2) {
      const Status status = Call(first, RecvOf(in, kAnyPeer, tag));
      EXPECT_EQ(status.code(), StatusCode::kRankFailed);
      EXPECT_EQ(status.detail().ranks, std::vector<int>{2});
    }
    Bytes sent = FilledWith(in.size(), static_cast<uint32_t>(tag));
    const auto again = Enqueued(first, RecvOf(in, kAnyPeer, tag));
    EXPECT_TRUE(Call(second, SendOf(sent, 0, tag)).ok());
    EXPECT_TRUE(first.Wait(again, kDeadlineSeconds).ok());
    EXPECT_EQ(again->result, 1);
    EXPECT_EQ(in, sent);
  }
  // No possible sender is left.
  second.Shutdown("");
  for (int call = 0; call < 2; ++call) {
    const Status status = Call(first, RecvOf(in, kAnyPeer, 1));
    EXPECT_EQ(status.code(), StatusCode::kRankFailed);
    EXPECT_EQ(status.detail().ranks, std::vector<int>{1});
  }
}

TEST(MessagesTest, EndWithARankThatFailsAfterOneHasLeft) {
  Ranks ranks(3);
  Bytes in(8);
  const auto left = Enqueued(ranks.runtime(0), RecvOf(in, 2));
  const auto recv = Enqueued(ranks.runtime(0), RecvOf(in, 1));
  ranks.runtime(2).Shutdown("");
  EXPECT_EQ(ranks.runtime(0).Wait(left, kDeadlineSeconds).code(), StatusCode::kRankFailed);
  EXPECT_FALSE(recv->done.load());
  ranks.runtime(1).Shutdown("it was told to");
  const Status status = ranks.runtime(0).Wait(recv, kDeadlineSeconds);
  EXPECT_EQ(status.code(), StatusCode::kRankFailed);
  EXPECT_EQ(status.detail().ranks, std::vector<int>{1});
}

TEST(MessagesTest, ASetIsRemovedWhenItsMessagesAreDone) {
  Ranks ranks(2);
  ranks.Run([](int rank, Runtime& runtime) {
    const auto added = AddSet({0, 1});
    // The global set has the same ranks.
    EXPECT_FALSE(Call(runtime, added).ok());
    const auto own = AddSet({1});
    ASSERT_TRUE(Call(runtime, own).ok());
    const auto id = static_cast<int>(own->result);
    Bytes memory = FilledWith(100'000, 1);
    Bytes received(100'000);
    OperationPtr recv;
    if (rank == 1) recv = Enqueued(runtime, RecvOf(received, 1, 0, id));
    const auto removal = Enqueued(runtime, RemoveSet(id));
    if (rank == 1) {
      EXPECT_FALSE(removal->done.load());
      EXPECT_TRUE(Call(runtime, SendOf(memory, 1, 0, id)).ok());
      EXPECT_TRUE(runtime.Wait(recv, kDeadlineSeconds).ok());
      EXPECT_EQ(received, memory);
    }
    EXPECT_TRUE(runtime.Wait(removal, kDeadlineSeconds).ok());
  });
}

TEST(MessagesTest, WrongArgumentsAreRefused) {
  Ranks ranks(2);
  Runtime& runtime = ranks.runtime(0);
  Bytes memory(8);
  EXPECT_EQ(runtime.Enqueue(SendOf(memory, 2), false).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(runtime.Enqueue(SendOf(memory, kAnyPeer), false).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(runtime.Enqueue(RecvOf(memory, -2), false).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(runtime.Enqueue(SendOf(memory, 1, -1), false).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(runtime.Enqueue(SendOf(memory, 1, 0, 7), false).code(), StatusCode::kInvalidArgument);
}

// Many ranks in one thread, scheduled at random. What they send and receive, the order and the
// sizes are random too.
class RandomMessages {
 public:
  explicit RandomMessages(uint32_t seed) : random_(seed) {
    size_ = 1 + static_cast<int>(random_() % 4);
    auto fabric = InprocFabric::Create(size_, {}, {});
    EXPECT_TRUE(fabric.ok());
    fabric_ = *fabric;
    const std::vector<std::string> hosts(static_cast<size_t>(size_), "host");
    for (int rank = 0; rank < size_; ++rank) {
      runtimes_.push_back(std::make_unique<Runtime>(
          Config(), TopologyOf(rank, hosts), fabric_->Endpoint(rank), Runtime::Driver::kTurns));
    }
  }

  void Run() {
    Choose();
    size_t begun = 0;
    // Everything begins and ends, whatever the order.
    for (int turn = 0; turn < 2'000'000 && !AllDone(begun); ++turn) {
      if (begun < calls_.size() && random_() % 4 == 0) Begin(calls_[begun++]);
      runtimes_[random_() % runtimes_.size()]->Turn();
    }
    ASSERT_TRUE(AllDone(begun));
    for (const Call& call : calls_) {
      ASSERT_TRUE(call.operation->status.ok()) << call.operation->status.message();
    }
    for (const Call& call : calls_) {
      if (!call.operation->message->is_send) Check(call);
    }
  }

 private:
  struct Call {
    int rank;
    bool is_send;
    int peer;
    int64_t tag;
    size_t bytes;
    uint32_t seed;
    Bytes memory;
    OperationPtr operation;
  };

  // Messages in send order. Their receives, in the same order for each pair and tag, are inserted
  // at random positions.
  void Choose() {
    std::vector<Call> sends;
    std::vector<Call> receives;
    const size_t count = 1 + random_() % 60;
    for (size_t i = 0; i < count; ++i) {
      const int from = static_cast<int>(random_() % static_cast<unsigned>(size_));
      const int to = static_cast<int>(random_() % static_cast<unsigned>(size_));
      const auto tag = static_cast<int64_t>(random_() % 3);
      const size_t sizes[] = {0,
                              1,
                              random_() % 100,
                              random_() % kMaxEagerBytes,
                              kMaxEagerBytes + random_() % 2,
                              random_() % 400'000};
      const size_t bytes = sizes[random_() % std::size(sizes)];
      sends.push_back({from, true, to, tag, bytes, static_cast<uint32_t>(i), {}, nullptr});
      receives.push_back({to, false, from, tag, bytes, static_cast<uint32_t>(i), {}, nullptr});
    }
    size_t sent = 0;
    size_t received = 0;
    while (sent < count || received < count) {
      const bool takes_send = received == count || (sent < count && random_() % 2 == 0);
      calls_.push_back(std::move(takes_send ? sends[sent++] : receives[received++]));
    }
  }

  void Begin(Call& call) {
    call.memory = call.is_send ? FilledWith(call.bytes, call.seed) : Bytes(call.bytes);
    call.operation = MessageOf(call.is_send, call.memory, call.peer, call.tag);
    Enqueued(*runtimes_[static_cast<size_t>(call.rank)], call.operation);
  }

  bool AllDone(size_t begun) const {
    return begun == calls_.size() && std::all_of(calls_.begin(), calls_.end(), [](const Call& one) {
             return one.operation->done.load();
           });
  }

  static void Check(const Call& call) {
    ASSERT_EQ(call.memory, FilledWith(call.bytes, call.seed))
        << "rank " << call.rank << ": " << call.operation->DisplayName();
    ASSERT_EQ(call.operation->result, call.peer);
  }

  std::minstd_rand random_;
  int size_;
  std::shared_ptr<InprocFabric> fabric_;
  std::vector<std::unique_ptr<Runtime>> runtimes_;
  std::vector<Call> calls_;
};

TEST(MessagesTest, RandomOrdersGiveEveryReceiveItsMessage) {
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    RandomMessages messages(seed);
    messages.Run();
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace horoscale
