// Sends and receives over every transport: sizes, pairs that send to each other, and all kinds of
// memory.
#include <deque>
#include <numeric>
#include <random>

#include "conformance/transport_fixture.h"
#include "core/mailbox.h"
#include "runtime/set_messages.h"

namespace horoscale {
namespace {

// Passes incoming frames to a rank's messages.
class MessageSink final : public TransportSink {
 public:
  explicit MessageSink(SetMessages& messages) : messages_(messages) {}
  void OnFrame(int from_rank, const FrameHeader& header,
               std::span<const std::byte> payload) override {
    EXPECT_EQ(header.kind, FrameKind::kMessage);
    EXPECT_EQ(header.channel, kChannel);
    const Status taken = messages_.OnFrame(from_rank, payload);
    EXPECT_TRUE(taken.ok()) << taken.message();
  }
  void OnRankLost(int rank, const Status& reason) override {
    ADD_FAILURE() << rank << ": " << reason.message();
  }

 private:
  SetMessages& messages_;
};

class MessagesOverTransport : public TransportTest {
 protected:
  void StartRanks(int size) {
    Start(size);
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int rank = 0; rank < size; ++rank) {
      messages_.push_back(std::make_unique<SetMessages>(
          At(rank), places_.emplace_back(kChannel, ranks, rank), launches_,
          [this](const OperationPtr& operation, const Status& status) {
            EXPECT_EQ(status.code(), expected_) << operation->DisplayName() << status.message();
            operation->done.store(true);
          },
          [] {}));
    }
  }

  OperationPtr Begin(int rank, bool is_send, int peer, int64_t tag, std::span<std::byte> memory) {
    auto operation = std::make_shared<Operation>();
    operation->token = next_token_++;
    operation->message = std::make_unique<Message>();
    *operation->message = {is_send, peer, {tag, 0, DataType::kUint8, memory.size()}, memory.data()};
    messages_[static_cast<size_t>(rank)]->Submit(operation);
    operations_.push_back(operation);
    return operation;
  }

  void Turn(int rank) {
    SetMessages& messages = *messages_[static_cast<size_t>(rank)];
    MessageSink sink(messages);
    At(rank).Poll(sink);
    ASSERT_TRUE(messages.Step().ok());
  }

  // Drives all ranks until all operations have ended.
  void Finish() {
    Drive(operations_);
    for (const auto& messages : messages_) EXPECT_EQ(messages->num_kept(), 0u);
  }

  void Drive(const std::vector<OperationPtr>& operations) {
    const Deadline deadline = Deadline::After(kPatience);
    const auto is_done = [](const OperationPtr& operation) { return operation->done.load(); };
    while (!std::all_of(operations.begin(), operations.end(), is_done)) {
      ASSERT_FALSE(deadline.Passed());
      for (int rank = 0; rank < size(); ++rank) Turn(rank);
    }
  }

  // Whether the rank has begun to stage a message for the other one.
  bool HasStaged(int rank, int to) {
    const int64_t offset = At(rank).StagingWith(to)->OffsetFor(to);
    std::byte* const area = At(rank).SharedAddress(rank, offset, kStagingAreaBytes);
    return reinterpret_cast<StagingControl*>(area)->begun.load() != 0;
  }

  // A receive that leaves the message in place, and the operation that gives it back.
  OperationPtr View(int rank, int peer, int64_t tag, size_t bytes) {
    auto operation = std::make_shared<Operation>();
    operation->token = next_token_++;
    operation->message = std::make_unique<Message>();
    operation->message->is_send = false;
    operation->message->peer = peer;
    operation->message->envelope = {tag, 0, DataType::kUint8, bytes};
    operation->message->is_view = true;
    messages_[static_cast<size_t>(rank)]->Submit(operation);
    return operation;
  }
  void Release(int rank, const OperationPtr& view) {
    auto operation = std::make_shared<Operation>();
    operation->token = next_token_++;
    operation->message = std::make_unique<Message>(
        Message{false, view->message->peer, view->message->envelope, nullptr, false, view});
    messages_[static_cast<size_t>(rank)]->Submit(operation);
    operations_.push_back(operation);
  }

  // No devices.
  LaunchOrder order_;
  const SetPlace place_{kChannel, {0}, 0};
  MessageLaunches launches_{order_, place_, [] { return static_cast<const DeviceLane*>(nullptr); },
                            [](const OperationPtr&) {}};
  std::deque<SetPlace> places_;  // per rank
  std::vector<std::unique_ptr<SetMessages>> messages_;
  std::vector<OperationPtr> operations_;
  Token next_token_ = 1;
  StatusCode expected_ = StatusCode::kOk;  // of all operations that end
};

TEST_P(MessagesOverTransport, EverybodyToEverybodyInEverySize) {
  StartRanks(3);
  constexpr size_t kSizes[] = {
      0,      1,        1000, kMaxEagerBytes, kMaxEagerBytes + 1, kMaxEagerBytesBetweenHosts,
      70'000, 2'500'000};
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  sent.reserve(100);
  received.reserve(100);
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      for (const size_t bytes : kSizes) {
        sent.push_back(Pattern(bytes, static_cast<uint32_t>(sent.size())));
        received.emplace_back(bytes);
        // Half of the receives are posted before their message arrives.
        const auto tag = static_cast<int64_t>(bytes);
        if (sent.size() % 2 == 0) Begin(to, false, from, tag, received.back());
        Begin(from, true, to, tag, sent.back());
        if (sent.size() % 2 == 1) Begin(to, false, from, tag, received.back());
      }
    }
  }
  Finish();
  EXPECT_EQ(received, sent);
}

TEST_P(MessagesOverTransport, ManyOfOneTagInOrder) {
  StartRanks(2);
  constexpr int kMessages = 500;
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  for (int i = 0; i < kMessages; ++i) {
    sent.push_back(Pattern(i % 7 == 0 ? 20'000 : 900, static_cast<uint32_t>(i)));
    received.emplace_back(sent.back().size());
  }
  for (std::vector<std::byte>& one : sent) Begin(0, true, 1, 3, one);
  for (int i = 0; i < 50; ++i) {
    for (const int rank : {0, 1}) Turn(rank);
  }
  EXPECT_LE(messages_[1]->num_kept(), static_cast<size_t>(kMessages));
  for (std::vector<std::byte>& one : received) Begin(1, false, kAnyPeer, 3, one);
  Finish();
  EXPECT_EQ(received, sent);
}

// Random tags, sizes, peers and interleavings. Receives of one peer and tag are posted in the order
// of the sends, before or after them.
TEST_P(MessagesOverTransport, RandomOnesInRandomOrder) {
  std::mt19937 random(7);
  const auto below = [&random](size_t limit) { return random() % limit; };
  StartRanks(4);
  constexpr size_t kMessages = 150;
  struct Planned {
    int from;
    int to;
    int64_t tag;
  };
  std::vector<Planned> planned;
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  for (size_t i = 0; i < kMessages; ++i) {
    const size_t sizes[] = {0, 1, below(2000), kMaxEagerBytes + below(2), below(300'000)};
    planned.push_back(
        {static_cast<int>(below(4)), static_cast<int>(below(4)), static_cast<int64_t>(below(3))});
    sent.push_back(Pattern(sizes[below(std::size(sizes))], static_cast<uint32_t>(i)));
    received.emplace_back(sent.back().size());
  }
  for (size_t sends = 0, receives = 0; sends < kMessages || receives < kMessages;) {
    const bool takes_send = receives == kMessages || (sends < kMessages && below(2) == 0);
    const size_t next = takes_send ? sends++ : receives++;
    const auto& [from, to, tag] = planned[next];
    Begin(takes_send ? from : to, takes_send, takes_send ? to : from, tag,
          takes_send ? sent[next] : received[next]);
    for (size_t turns = below(4); turns > 0; --turns) Turn(static_cast<int>(below(4)));
  }
  Finish();
  EXPECT_EQ(received, sent);
}

// Both ends of a large message get the error, and the next message arrives.
TEST_P(MessagesOverTransport, AMismatchEndsItsTwoEndsAlone) {
  StartRanks(2);
  for (const bool posted_before : {false, true}) {
    auto sent = Pattern(100'000, 1);
    std::vector<std::byte> less(sent.size() - 1);
    std::vector<std::byte> received(sent.size());
    expected_ = StatusCode::kMismatch;
    if (posted_before) Begin(1, false, 0, 3, less);
    Begin(0, true, 1, 3, sent);
    if (!posted_before) Begin(1, false, 0, 3, less);
    Finish();
    expected_ = StatusCode::kOk;
    Begin(0, true, 1, 3, sent);
    Begin(1, false, kAnyPeer, 3, received);
    Finish();
    EXPECT_EQ(received, sent);
  }
}

// Sequential messages, so that they use the same staging area, with others of the same sender in
// flight.
TEST_P(MessagesOverTransport, LargeOnesFromPrivateMemoryInTurn) {
  StartRanks(2);
  for (const size_t bytes :
       {size_t{33'000}, size_t{400'000}, size_t{10'000'000}, size_t{64 << 10}}) {
    const auto there = Pattern(bytes, 3);
    const auto beside = Pattern(bytes / 2, 4);
    std::vector<std::vector<std::byte>> sent = {there, beside, there, there};
    std::vector<std::vector<std::byte>> received;
    for (const auto& one : sent) received.emplace_back(one.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      const int from = i == 3 ? 1 : 0;
      Begin(from, true, 1 - from, static_cast<int64_t>(i), sent[i]);
      Begin(1 - from, false, from, static_cast<int64_t>(i), received[i]);
    }
    Finish();
    EXPECT_EQ(received, sent) << bytes;
  }
}

// It delays neither other messages of its sender nor those of other senders, even when its sender
// posts another long one after it.
TEST_P(MessagesOverTransport, OneThatTakesLongHoldsUpNoOther) {
  StartRanks(3);
  std::vector<std::vector<std::byte>> sent = {Pattern(20'000'000, 1), Pattern(9'000'000, 2),
                                              Pattern(100'000, 3), Pattern(100'000, 4)};
  std::vector<std::vector<std::byte>> received;
  for (const auto& one : sent) received.emplace_back(one.size());
  std::vector<OperationPtr> receives;
  for (size_t i = 0; i < sent.size(); ++i) {
    const int from = i == 3 ? 1 : 0;
    receives.push_back(Begin(2, false, from, static_cast<int64_t>(i), received[i]));
    Begin(from, true, 2, static_cast<int64_t>(i), sent[i]);
  }
  Drive({receives[2], receives[3]});
  EXPECT_FALSE(receives[0]->done.load());
  EXPECT_FALSE(receives[1]->done.load());
  Finish();
  EXPECT_EQ(received, sent);
}

TEST_P(MessagesOverTransport, ASenderSleepsWhileItsCellsAreFull) {
  StartRanks(2);
  if (At(0).StagingWith(1) == nullptr) GTEST_SKIP() << "its receiver reads alone";
  auto sent = Pattern(10'000'000, 1);
  std::vector<std::byte> received(sent.size());
  Begin(1, false, 0, 0, received);
  Begin(0, true, 1, 0, sent);
  const Deadline deadline = Deadline::After(kPatience);
  while (!HasStaged(0, 1)) {
    ASSERT_FALSE(deadline.Passed());
    for (const int rank : {0, 1}) Turn(rank);
  }
  while (*messages_[0]->Step()) {
  }
  At(0).Arm();
  ASSERT_FALSE(*messages_[0]->Step());
  const uint64_t rung = At(1).counters().doorbells_rung;
  Turn(1);
  EXPECT_EQ(At(1).counters().doorbells_rung, rung + 1);
  At(0).Sleep(kPatience);
  At(0).Disarm();
  EXPECT_TRUE(*messages_[0]->Step());
  Finish();
  EXPECT_EQ(received, sent);
}

TEST_P(MessagesOverTransport, WhoReadsItselfStagesNothing) {
  StartRanks(2);
  if (At(0).StagingWith(1) == nullptr) GTEST_SKIP() << "receivers read alone";
  std::vector<std::vector<std::byte>> sent = {Pattern(10'000'000, 1), Pattern(10'000'000, 2)};
  std::vector<std::vector<std::byte>> received(2, std::vector<std::byte>(sent[0].size()));
  for (const int rank : {0, 1}) {
    Begin(rank, true, 1 - rank, 0, sent[static_cast<size_t>(rank)]);
    Begin(1 - rank, false, rank, 0, received[static_cast<size_t>(rank)]);
  }
  for (int i = 0; i < 10; ++i) {
    for (const int rank : {0, 1}) Turn(rank);
  }
  for (const OperationPtr& operation : operations_) EXPECT_FALSE(operation->done.load());
  EXPECT_FALSE(HasStaged(0, 1));
  EXPECT_FALSE(HasStaged(1, 0));
  Finish();
  EXPECT_EQ(received, sent);
}

TEST_P(MessagesOverTransport, MemoryThatPeersCanReach) {
  StartRanks(3);
  constexpr size_t kBytes = 300'000;
  const auto memory = At(0).AllocateShared(kBytes);
  if (!memory.ok()) GTEST_SKIP() << memory.status().message();
  const auto pattern = Pattern(kBytes, 5);
  std::copy(pattern.begin(), pattern.end(), *memory);
  std::vector<std::vector<std::byte>> received(3, std::vector<std::byte>(kBytes));
  for (int to = 0; to < size(); ++to) {
    Begin(0, true, to, 0, {*memory, kBytes});
    Begin(to, false, 0, 0, received[static_cast<size_t>(to)]);
  }
  Finish();
  for (const auto& one : received) EXPECT_EQ(one, pattern);
  At(0).FreeShared(*memory);
}

// A view is in place where the memory can be reached, and a copy elsewhere. All senders get their
// memory back at the end.
TEST_P(MessagesOverTransport, Views) {
  StartRanks(3);
  std::vector<std::byte*> shared;
  std::vector<std::vector<std::byte>> sent;
  sent.reserve(100);
  for (const size_t bytes : {size_t{0}, size_t{100}, kMaxEagerBytes + 1, size_t{300'000}}) {
    sent.push_back(Pattern(bytes, 5));
    const auto memory = bytes > 0 ? At(0).AllocateShared(bytes) : Status::Protocol("none");
    if (memory.ok()) shared.push_back(std::copy_n(sent.back().begin(), bytes, *memory) - bytes);
    std::vector<OperationPtr> views;
    std::vector<OperationPtr> sends;
    for (int to = 0; to < size(); ++to) {
      // Rank 1 views it in shared memory, if there is any.
      const bool is_shared = to == 1 && memory.ok();
      std::byte* const from = is_shared ? *memory : sent.back().data();
      if (to == 2) views.push_back(View(to, 0, 7, bytes));
      sends.push_back(Begin(0, true, to, 7, {from, bytes}));
      if (to != 2) views.push_back(View(to, kAnyPeer, 7, bytes));
    }
    Drive(views);
    for (int to = 0; to < size(); ++to) {
      const Operation& view = *views[static_cast<size_t>(to)];
      const std::span seen(view.message->memory, bytes);
      EXPECT_TRUE(std::equal(seen.begin(), seen.end(), sent.back().begin())) << to;
      EXPECT_EQ(view.result, 0);
      const bool is_seen = view.message->number != 0;
      const bool is_common = to == 1 && memory.ok() && GetParam().has_common_memory;
      EXPECT_EQ(is_seen, bytes > kMaxEagerBytes && (to == 0 || is_common)) << to;
      if (is_seen) {
        EXPECT_FALSE(sends[static_cast<size_t>(to)]->done.load());
      }
      Release(to, views[static_cast<size_t>(to)]);
    }
    Finish();
  }
  for (std::byte* memory : shared) At(0).FreeShared(memory);
}

HOROSCALE_INSTANTIATE_TRANSPORT_TEST(MessagesOverTransport);

}  // namespace
}  // namespace horoscale
