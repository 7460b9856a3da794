// Links between hosts that are made on first use, and notices of a lost rank to ranks that have no
// link to it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/collective.h"
#include "conformance/hosts_world.h"
#include "conformance/transport_fixture.h"
#include "transport/tcp/backbone.h"

namespace horoscale {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class HostsLinksTest : public ::testing::Test {
 protected:
  static constexpr int kHosts = 4;
  static constexpr int kRanksOfHost = 4;
  static constexpr int kSize = kHosts * kRanksOfHost;

  void SetUp() override {
#ifdef HOROSCALE_TSAN
    GTEST_SKIP() << "the ranks of a host share memory";
#endif
    Start(kSize, kRanksOfHost);
  }

  void Start(int size, int ranks_of_host, double silence_seconds = 30) {
    const HostsWorld::Hosts hosts = {
        .ranks = ranks_of_host, .data_streams = 2, .silence_seconds = silence_seconds};
    world_ = std::make_unique<HostsWorld>(size, hosts, kTiny);
    inboxes_.assign(static_cast<size_t>(size), {});
    gone_.clear();
  }
  Transport& At(int rank) { return world_->At(rank); }
  Inbox& InboxOf(int rank) { return inboxes_[static_cast<size_t>(rank)]; }
  std::vector<int> Linked(int rank) { return world_->Far(rank).Linked(); }
  int size() const { return static_cast<int>(inboxes_.size()); }

  void Lose(int rank) {
    gone_.insert(rank);
    world_->Lose(rank);
  }
  bool PollUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::After(kPatience);
    while (!condition()) {
      if (deadline.Passed()) return false;
      for (int rank = 0; rank < size(); ++rank) {
        if (!gone_.contains(rank)) At(rank).Poll(InboxOf(rank));
      }
    }
    return true;
  }
  bool HasLost(int rank, int lost) {
    return std::any_of(InboxOf(rank).lost.begin(), InboxOf(rank).lost.end(),
                       [lost](const auto& one) { return one.first == lost; });
  }
  // Whether every live rank has been notified of every lost one exactly once.
  bool AllKnowWhoIsGone() {
    for (int rank = 0; rank < size(); ++rank) {
      if (!gone_.contains(rank) && InboxOf(rank).lost.size() < gone_.size()) return false;
    }
    return true;
  }
  void ExpectLossesOfAll() {
    ASSERT_TRUE(PollUntil([this] { return AllKnowWhoIsGone(); }));
    for (int i = 0; i < 20; ++i) PollUntil([i]() mutable { return i-- < 0; });
    for (int rank = 0; rank < size(); ++rank) {
      if (gone_.contains(rank)) continue;
      std::multiset<int> lost;
      for (const auto& [who, reason] : InboxOf(rank).lost) {
        lost.insert(who);
        EXPECT_EQ(reason.code(), StatusCode::kRankFailed);
        EXPECT_THAT(reason.detail().ranks, ElementsAre(who));
        EXPECT_FALSE(reason.message().empty());
        EXPECT_EQ(InboxOf(rank).frames_when_lost[who], InboxOf(rank).frames[who].size());
      }
      EXPECT_THAT(lost, ElementsAreArray(gone_)) << "at rank " << rank;
    }
  }

  std::unique_ptr<HostsWorld> world_;
  std::vector<Inbox> inboxes_;
  std::set<int> gone_;
};

TEST_F(HostsLinksTest, OnlyTheBackboneIsLinkedAtTheStart) {
  size_t links = 0;
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(Linked(rank), BackbonePeers(rank, world_->hosts()));
    links += Linked(rank).size();
  }
  EXPECT_EQ(links, size_t{kSize} * (kHosts - 1)) << "of " << kSize * (kSize - kRanksOfHost);
}

TEST_F(HostsLinksTest, AnAllreduceOfAllNeedsNoFurtherLink) {
  std::vector<int> ranks(kSize);
  for (int rank = 0; rank < kSize; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  std::vector<std::vector<float>> values(kSize, std::vector<float>(300'000, 1));
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::vector<std::unique_ptr<Collective>> collectives;
  for (int rank = 0; rank < kSize; ++rank) {
    exchanges.push_back(At(rank).Open(kChannel, ranks).TakeValue());
    std::vector<float>& own = values[static_cast<size_t>(rank)];
    auto* const bytes = reinterpret_cast<std::byte*>(own.data());
    AllreduceArgs args;
    args.segments = {{bytes, bytes, static_cast<int64_t>(own.size() * sizeof(float))}};
    collectives.push_back(MakeAllreduce(*exchanges.back(), std::move(args)));
  }
  std::set<int> done;
  ASSERT_TRUE(PollUntil([&] {
    for (int rank = 0; rank < kSize; ++rank) {
      if (done.contains(rank)) continue;
      if (*collectives[static_cast<size_t>(rank)]->Step() == Progress::kDone) done.insert(rank);
    }
    return done.size() == kSize;
  }));
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(values[static_cast<size_t>(rank)], std::vector<float>(300'000, kSize));
    EXPECT_EQ(Linked(rank), BackbonePeers(rank, world_->hosts()));
  }
}

TEST_F(HostsLinksTest, AChunkLinksItsReadersAlone) {
  const std::vector<int> ranks = {0, 1, 5, 6, 15};
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (const int rank : ranks) exchanges.push_back(At(rank).Open(kChannel, ranks).TakeValue());
  ASSERT_TRUE(PollUntil([&] { return exchanges[0]->Reserve(0) != nullptr; }));
  const auto content = Pattern(1000, 3);
  std::copy(content.begin(), content.end(), exchanges[0]->Reserve(0));
  std::vector<Exchange::Extent> extents(ranks.size());
  extents[3] = {0, content.size()};  // rank 6
  exchanges[0]->Publish(0, content.size(), extents);
  EXPECT_TRUE(At(0).HasUnsent());
  ASSERT_TRUE(PollUntil([&] { return exchanges[3]->Peek(0, 0) != nullptr; }));
  EXPECT_TRUE(std::equal(content.begin(), content.end(), exchanges[3]->Peek(0, 0)));
  EXPECT_FALSE(At(0).HasUnsent());
  EXPECT_THAT(Linked(0), Contains(6));
  EXPECT_THAT(Linked(0), Not(Contains(5)));
  EXPECT_THAT(Linked(0), Not(Contains(15)));
  // The bank is free once its only reader has released it.
  for (auto& exchange : exchanges) exchange->Release(0);
  EXPECT_TRUE(PollUntil([&] { return exchanges[0]->Reserve(4) != nullptr; }));
}

// Both sides of each pair begin at the same time, and send more while the link is being made.
TEST_F(HostsLinksTest, FramesOfCrossingCallsArriveOnceAndInOrder) {
  for (int round = 0; round < 5; ++round) {
    if (round > 0) Start(kSize, kRanksOfHost);
    for (uint32_t i = 0; i < 20; ++i) {
      for (int from = 0; from < kSize; ++from) {
        for (int to = 0; to < kSize; ++to) {
          if (from == to) continue;
          At(from).Send(to, {FrameKind::kReport, {i, 1}}, Pattern(i * 7, i));
        }
        if (i % 5 == 4) At(from).Poll(InboxOf(from));
      }
    }
    ASSERT_TRUE(PollUntil([&] {
      for (int to = 0; to < kSize; ++to) {
        for (int from = 0; from < kSize; ++from) {
          if (from != to && InboxOf(to).frames[from].size() < 20) return false;
        }
      }
      return true;
    }));
    for (int to = 0; to < kSize; ++to) {
      EXPECT_EQ(Linked(to).size(), size_t{kSize - kRanksOfHost});
      EXPECT_TRUE(InboxOf(to).lost.empty());
      for (int from = 0; from < kSize; ++from) {
        if (from == to) continue;
        const auto& frames = InboxOf(to).frames[from];
        ASSERT_EQ(frames.size(), 20u);
        for (uint32_t i = 0; i < 20; ++i) {
          EXPECT_EQ(frames[i].header.channel.process_set, i);
          EXPECT_TRUE(frames[i].payload == Pattern(i * 7, i));
        }
      }
    }
  }
}

TEST_F(HostsLinksTest, TheLossOfARankIsToldEverywhereOnce) {
  Lose(6);
  ExpectLossesOfAll();
}

TEST_F(HostsLinksTest, TheLossOfAHostIsToldEverywhereOnce) {
  for (int rank = 4; rank < 8; ++rank) Lose(rank);
  ExpectLossesOfAll();
}

// The ranks that would send the notices are lost as well, among them one on each host.
TEST_F(HostsLinksTest, LossesAreToldAlsoWhereThoseAreLostThatSawThem) {
  for (const int rank : {0, 4, 5, 6, 8, 12}) Lose(rank);
  ExpectLossesOfAll();
}

TEST_F(HostsLinksTest, AGoodbyeComesToAllBeforeTheLoss) {
  At(5).Send(10, {FrameKind::kReport, {}}, Pattern(9, 9));  // for which there is no link yet
  EXPECT_THAT(At(5).AwaitLinks(kPatience), IsEmpty());
  const auto last = Pattern(30, 2);
  At(5).Close(last, kPatience);
  gone_.insert(5);
  ExpectLossesOfAll();
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == 5) continue;
    const auto& frames = InboxOf(rank).frames[5];
    ASSERT_EQ(frames.size(), rank == 10 ? 2u : 1u) << "at rank " << rank;
    EXPECT_EQ(frames.back().header.kind, FrameKind::kGoodbye);
    EXPECT_TRUE(frames.back().payload == last);
    EXPECT_THAT(InboxOf(rank).lost[0].second.message(), HasSubstr("closed its link"));
  }
}

TEST_F(HostsLinksTest, ARankThatIsLostWhileItIsCalledIsLostForTheCaller) {
  At(0).Send(7, {FrameKind::kReport, {}}, Pattern(9, 9));
  Lose(7);
  At(0).Send(7, {FrameKind::kReport, {}}, Pattern(9, 9));
  ExpectLossesOfAll();
  EXPECT_FALSE(At(0).HasUnsent());
}

// Ranks that get another host's notices from one of its ranks get them from another one when that
// is lost.
TEST_F(HostsLinksTest, ARepresentativeThatIsLostIsReplaced) {
  Start(6, 3);  // two hosts: links 0-3, 1-4, 2-5
  Lose(3);
  ExpectLossesOfAll();
  const auto is_linked = [this](int rank, int other) {
    return world_->Far(rank).StateOf(other) == MessagePost::LinkState::kUp;
  };
  ASSERT_TRUE(PollUntil([&] { return is_linked(0, 4) && is_linked(4, 0); }));
  Lose(1);
  Lose(2);
  ExpectLossesOfAll();
  ASSERT_TRUE(PollUntil([&] { return is_linked(0, 5) && is_linked(5, 0); }));
  Lose(4);
  Lose(5);
  ExpectLossesOfAll();
}

// While its neighbours are lost, the last rank of one host has no link to the last rank of the
// other.
TEST_F(HostsLinksTest, WhoIsLinkedAnewIsToldOfEarlierLosses) {
  Start(8, 4);  // two hosts: links 0-4, 1-5, 2-6, 3-7
  for (const int rank : {1, 2, 3, 4, 5, 6}) Lose(rank);
  const Deadline deadline = Deadline::After(kPatience);
  while (InboxOf(7).lost.size() < 4 && !deadline.Passed()) At(7).Poll(InboxOf(7));  // 3, 4, 5, 6
  ExpectLossesOfAll();
}

TEST_F(HostsLinksTest, ARankThatCanNotBeReachedIsLostForItsCallerAlone) {
  Start(kSize, kRanksOfHost, 2);
  Lose(11);  // nobody sends a notice: the ranks of its host are not polled
  At(1).Send(11, {FrameKind::kReport, {}}, Pattern(9, 9));
  EXPECT_THAT(At(1).AwaitLinks(kPatience), ElementsAre(11)) << "the frame is not delivered";
  At(2).Send(11, {FrameKind::kReport, {}}, Pattern(9, 9));
  const Deadline deadline = Deadline::After(kPatience);
  while (!HasLost(2, 11) && !deadline.Passed()) At(2).Poll(InboxOf(2));
  ASSERT_TRUE(HasLost(2, 11));
  EXPECT_EQ(InboxOf(2).lost[0].second.code(), StatusCode::kTimeout);
  for (int i = 0; i < 100; ++i) At(0).Poll(InboxOf(0));
  EXPECT_FALSE(HasLost(0, 11)) << "it did not try";
  ASSERT_TRUE(PollUntil([this] { return HasLost(0, 11); })) << "the ranks of its host tell of it";
}

TEST_F(HostsLinksTest, WhatWaitsForALinkIsDeliveredBeforeTheEnd) {
  At(0).Send(6, {FrameKind::kReport, {}}, Pattern(9, 9));
  EXPECT_THAT(At(0).AwaitLinks(kPatience), IsEmpty());  // rank 6 need not be polled
  At(0).Close(Pattern(5, 5), kPatience);
  gone_.insert(0);
  ExpectLossesOfAll();
  EXPECT_EQ(InboxOf(6).frames[0].size(), 2u);
}

TEST_F(HostsLinksTest, WhatNobodyNeedsOfARankThatLeavesIsNotAwaited) {
  Lose(11);
  for (const FrameKind kind : {FrameKind::kProbe, FrameKind::kStall, FrameKind::kPoison}) {
    At(1).Send(11, {kind, {}}, Pattern(9, 9));
  }
  EXPECT_THAT(At(1).AwaitLinks(kPatience), IsEmpty());
  EXPECT_TRUE(At(1).HasUnsent());
}

TEST_F(HostsLinksTest, TheEndIsNotAwaitedForLong) {
  Lose(11);
  At(1).Send(11, {FrameKind::kReport, {}}, Pattern(9, 9));
  EXPECT_THAT(At(1).AwaitLinks(0.05), ElementsAre(11));
}

// A notice of a loss wakes a thread that sleeps in its transport.
TEST_F(HostsLinksTest, ASleeperIsWokenByALossThatItIsTold) {
  Inbox& inbox = InboxOf(0);
  bool is_told = false;
  std::thread sleeper([&] {
    const Deadline deadline = Deadline::After(kPatience);
    while (!(is_told = HasLost(0, 7)) && !deadline.Passed()) {
      At(0).Arm();
      if (!At(0).Poll(inbox)) At(0).Sleep(deadline.SecondsLeft());
      At(0).Disarm();
    }
  });
  Lose(7);
  const Deadline deadline = Deadline::After(kPatience);
  while (!deadline.Passed() && !HasLost(4, 7)) {
    for (const int rank : {4, 5, 6}) At(rank).Poll(InboxOf(rank));
  }
  for (int i = 0; i < 100; ++i) {
    for (const int rank : {4, 5, 6}) At(rank).Poll(InboxOf(rank));
  }
  sleeper.join();
  EXPECT_TRUE(is_told);
}

// An idle rank is asked to poll when it may have to notify others.
TEST_F(HostsLinksTest, AnIdleRankIsCalledWhenARankOfItsHostIsLost) {
  for (const int lost : {6, 1}) {  // on its own host, and at the other end of a link
    std::atomic<bool> called{false};
    At(5).CallOnEnd([&] { called.store(true); });
    At(5).Poll(InboxOf(5));
    Lose(lost);
    const Deadline deadline = Deadline::After(kPatience);
    while (!called.load() && !deadline.Passed()) std::this_thread::yield();
    EXPECT_TRUE(called.load());
    At(5).Poll(InboxOf(5));  // one poll is enough
    EXPECT_TRUE(HasLost(5, lost));
    At(5).CallOnEnd(nullptr);
  }
}

}  // namespace
}  // namespace horoscale
