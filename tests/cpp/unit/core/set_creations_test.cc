#include "core/set_creations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/process_set_ids.h"

namespace horoscale {
namespace {

using Kind = SetCreations::Step::Kind;

// The sets that a rank has registered.
class Sets final : public SetCreations::Registered {
 public:
  std::optional<int> IdOf(const std::vector<int>& ranks) const override {
    for (const auto& [id, registered] : ranks_) {
      if (registered == ranks) return id;
    }
    return std::nullopt;
  }
  bool HasId(int id) const override { return ranks_.contains(id); }

  std::map<int, std::vector<int>> ranks_;  // by id
};

// The ranks of a job, with an ordered link between each pair.
class Job {
 public:
  explicit Job(int size) : size_(size), sets_(static_cast<size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(rank, size, set(rank));
  }

  Sets& set(int rank) { return sets_[static_cast<size_t>(rank)]; }
  SetCreations& rank(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  uint64_t Call(int caller, NewSet wanted) {
    const auto call = rank(caller).Call(std::move(wanted));
    EXPECT_TRUE(call.ok()) << call.status().message();
    TakeSteps(caller);
    return call.ok() ? *call : 0;
  }

  void Lose(int lost, const std::set<int>& by, bool only_here = false) {
    dead_.insert(only_here ? -1 : lost);
    const Status cause(StatusCode::kRankFailed, "rank " + std::to_string(lost) + " failed",
                       {{lost}, -1, ""});
    for (const int survivor : by) {
      rank(survivor).OnLost(lost, cause, only_here);
      TakeSteps(survivor);
    }
  }

  void TakeSteps(int of) {
    for (SetCreations::Step& step : rank(of).TakeSteps()) {
      const int id = IdByMembers(step.rank, step.number, size_);
      switch (step.kind) {
        case Kind::kSend: {
          const auto frame = DecodeSetCreationFrame(Encode(step.frame));
          ASSERT_TRUE(frame.ok());
          links_[{of, step.rank}].push_back(*frame);
          break;
        }
        case Kind::kRegister:
          ASSERT_TRUE(set(of).ranks_.emplace(id, step.set.ranks).second);
          break;
        case Kind::kDiscard:
          set(of).ranks_.erase(id);
          break;
        case Kind::kBegun:
          ASSERT_TRUE(set(of).HasId(id));
          begun_[{of, step.call}] = id;
          break;
        case Kind::kFailed:
          failed_[{of, step.call}] = step.cause;
          break;
      }
    }
  }

  // Delivers one frame of any link; false if there is none.
  bool DeliverOne(std::mt19937& random) {
    std::vector<std::pair<int, int>> ready;
    for (const auto& [link, frames] : links_) {
      if (!frames.empty() && !dead_.contains(link.second)) ready.push_back(link);
    }
    if (ready.empty()) return false;
    const auto link = ready[random() % ready.size()];
    const SetCreationFrame frame = links_[link].front();
    links_[link].pop_front();
    EXPECT_TRUE(rank(link.second).OnFrame(link.first, frame).ok());
    TakeSteps(link.second);
    return true;
  }
  void DeliverAll(unsigned seed = 0) {
    std::mt19937 random(seed);
    while (DeliverOne(random)) {
    }
  }

  std::optional<int> Begun(int rank, uint64_t call) const {
    const auto found = begun_.find({rank, call});
    return found == begun_.end() ? std::nullopt : std::optional(found->second);
  }
  Status Failed(int rank, uint64_t call) const {
    const auto found = failed_.find({rank, call});
    return found == failed_.end() ? Status::Ok() : found->second;
  }

 private:
  const int size_;
  std::deque<Sets> sets_;
  std::deque<SetCreations> ranks_;
  std::map<std::pair<int, int>, std::deque<SetCreationFrame>> links_;
  std::set<int> dead_;
  std::map<std::pair<int, uint64_t>, int> begun_;
  std::map<std::pair<int, uint64_t>, Status> failed_;
};

TEST(SetCreations, AllMembersGetOneIdAndOthersHearNothing) {
  Job job(4);
  const auto first = job.Call(3, {{1, 3}, false, ""});
  job.DeliverAll();
  EXPECT_FALSE(job.Begun(3, first));
  EXPECT_EQ(job.rank(3).MissedBy(first), std::vector<int>{1});
  const auto second = job.Call(1, {{1, 3}, false, ""});
  job.DeliverAll();
  ASSERT_TRUE(job.Begun(3, first));
  EXPECT_EQ(job.Begun(3, first), job.Begun(1, second));
  EXPECT_TRUE(IsMadeByMembers(*job.Begun(1, second)));
  EXPECT_TRUE(job.set(0).ranks_.empty() && job.set(2).ranks_.empty());
}

TEST(SetCreations, NobodyBeginsBeforeAllHaveRegistered) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Job job(4);
    std::mt19937 random(seed);
    std::vector<uint64_t> calls;
    for (int rank = 0; rank < 4; ++rank) calls.push_back(job.Call(rank, {{0, 1, 2, 3}, false, ""}));
    while (job.DeliverOne(random)) {
      for (int rank = 0; rank < 4; ++rank) {
        if (!job.Begun(rank, calls[static_cast<size_t>(rank)])) continue;
        for (int other = 0; other < 4; ++other) ASSERT_EQ(job.set(other).ranks_.size(), 1u);
      }
    }
    for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(job.Begun(rank, calls[size_t(rank)]));
  }
}

TEST(SetCreations, CallsInCrossedOrderAreToldApartByTheirTags) {
  Job job(2);
  const auto a0 = job.Call(0, {{0, 1}, true, "a"});
  const auto b1 = job.Call(1, {{0, 1}, true, "b"});
  job.DeliverAll();
  const auto b0 = job.Call(0, {{0, 1}, true, "b"});
  const auto a1 = job.Call(1, {{0, 1}, true, "a"});
  job.DeliverAll();
  EXPECT_EQ(job.Begun(0, a0), job.Begun(1, a1));
  EXPECT_EQ(job.Begun(0, b0), job.Begun(1, b1));
  EXPECT_NE(job.Begun(0, a0), job.Begun(0, b0));
}

TEST(SetCreations, WhatContradictsFailsOnAllMembers) {
  Job job(3);
  const auto zero = job.Call(0, {{2, 0, 1}, false, ""});
  const auto one = job.Call(1, {{0, 1, 2}, false, ""});
  const auto two = job.Call(2, {{2, 0, 1}, false, ""});
  job.DeliverAll();
  for (const auto& [rank, call] : {std::pair(0, zero), {1, one}, {2, two}}) {
    const Status failed = job.Failed(rank, call);
    EXPECT_EQ(failed.code(), StatusCode::kMismatch);
    EXPECT_NE(failed.message().find("rank 1: the set of ranks 0-2"), std::string::npos)
        << failed.message();
    EXPECT_NE(failed.message().find("ranks 0 and 2: the set of ranks 2, 0 and 1"),
              std::string::npos);
    EXPECT_TRUE(job.set(rank).ranks_.empty());
  }
}

// The error message lists only 32 of them.
TEST(SetCreations, AContradictionAfterManyEqualRanksIsFound) {
  constexpr int kSize = 70;
  Job job(kSize);
  std::vector<int> order;
  for (const int first : {0, 1}) {
    for (int rank = first; rank < kSize; rank += 2) order.push_back(rank);
  }
  std::vector<int> other = order;
  std::swap(other[kSize - 2], other[kSize - 1]);
  std::vector<uint64_t> calls;
  for (int rank = 0; rank < kSize; ++rank) {
    calls.push_back(job.Call(rank, {rank == 5 ? other : order, false, ""}));
  }
  job.DeliverAll();
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(job.Failed(rank, calls[size_t(rank)]).code(), StatusCode::kMismatch);
    EXPECT_TRUE(job.set(rank).ranks_.empty());
  }
}

TEST(SetCreations, EqualRanksTwiceHaveToBeDistinct) {
  Job job(2);
  for (const bool distinct : {false, false, true}) {
    std::vector<uint64_t> calls;
    for (int rank = 0; rank < 2; ++rank) calls.push_back(job.Call(rank, {{0, 1}, distinct, ""}));
    job.DeliverAll();
    const bool fails = !distinct && job.set(0).ranks_.size() == 1 && !job.Begun(0, calls[0]);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(job.Failed(rank, calls[size_t(rank)]).code(),
                fails ? StatusCode::kInvalidArgument : StatusCode::kOk);
    }
  }
  EXPECT_EQ(job.set(0).ranks_.size(), 2u);
  EXPECT_EQ(job.set(0).ranks_, job.set(1).ranks_);
}

TEST(SetCreations, TheSameCallTwiceAtOnceIsRefused) {
  Job job(2);
  job.Call(0, {{0, 1}, false, ""});
  EXPECT_EQ(job.rank(0).Call({{1, 0}, true, ""}).status().code(), StatusCode::kDuplicateName);
  EXPECT_TRUE(job.rank(0).Call({{0, 1}, true, "other"}).ok());
}

TEST(SetCreations, WhatCantBeIsRefused) {
  Job job(3);
  SetCreationFrame ask{.set = {{0, 1}, false, ""}, .cause = {}};
  EXPECT_EQ(job.rank(0).OnFrame(2, ask).code(), StatusCode::kProtocol);  // no member
  EXPECT_EQ(job.rank(1).OnFrame(0, ask).code(), StatusCode::kProtocol);  // not the leader
  for (const auto& ranks : {std::vector<int>{}, {0, 0, 1}, {0, 1, 3}, {1}}) {
    ask.set.ranks = ranks;
    EXPECT_EQ(job.rank(0).OnFrame(1, ask).code(), StatusCode::kProtocol);
  }
  for (const auto type : {SetCreationFrame::Type::kMade, SetCreationFrame::Type::kReady,
                          SetCreationFrame::Type::kBegin, SetCreationFrame::Type::kRefused,
                          SetCreationFrame::Type::kWithdrawn}) {
    EXPECT_TRUE(
        job.rank(0).OnFrame(1, {.type = type, .set = {{0, 1}, false, ""}, .cause = {}}).ok());
  }
  EXPECT_TRUE(job.rank(0).TakeSteps().empty());
}

TEST(SetCreations, ALeaderKeepsSoManyCallsOfAMember) {
  Job job(2);
  for (size_t i = 0; i < SetCreations::kMostAsks; ++i)
    job.Call(1, {{0, 1}, true, std::to_string(i)});
  const auto last = job.Call(1, {{0, 1}, true, "last"});
  job.DeliverAll();
  EXPECT_EQ(job.Failed(1, last).code(), StatusCode::kInvalidArgument);
}

// At any moment, every live member fails or has begun, and a set that has begun is complete
// somewhere.
TEST(SetCreations, TheLossOfAMemberAtAnyMomentFailsTheOthers) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    Job job(4);
    const int lost = static_cast<int>(random() % 4);
    std::vector<uint64_t> calls;
    for (int rank = 0; rank < 4; ++rank) calls.push_back(job.Call(rank, {{0, 1, 2, 3}, false, ""}));
    for (unsigned n = random() % 14; n > 0 && job.DeliverOne(random); --n) {
    }
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == lost) continue;
      job.Lose(lost, {rank});
      for (unsigned n = random() % 3; n > 0 && job.DeliverOne(random); --n) {
      }
    }
    job.DeliverAll(seed);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == lost) continue;
      const uint64_t call = calls[static_cast<size_t>(rank)];
      const Status failed = job.Failed(rank, call);
      EXPECT_NE(failed.ok(), !job.Begun(rank, call)) << "seed " << seed;
      if (!failed.ok()) {
        EXPECT_EQ(failed.detail().ranks, std::vector<int>{lost});
      }
      EXPECT_EQ(job.set(rank).ranks_.empty(), !failed.ok());
    }
    EXPECT_EQ(job.rank(lost == 0 ? 1 : 0).Call({{0, 1, 2, 3}, false, ""}).status().code(),
              StatusCode::kRankFailed);
  }
}

// Rank 2 can't reach rank 1, which is alive, and nobody else knows.
TEST(SetCreations, WhoCantReachAMemberTellsTheOthers) {
  Job job(4);
  const auto one = job.Call(1, {{0, 1, 2}, false, ""});
  const auto two = job.Call(2, {{0, 1, 2}, false, ""});
  job.Lose(1, {2}, true);
  job.DeliverAll();
  EXPECT_FALSE(job.Failed(2, two).ok());
  EXPECT_FALSE(job.Failed(1, one).ok());
  const auto zero = job.Call(0, {{0, 1, 2}, false, ""});  // later calls fail as well
  job.DeliverAll();
  EXPECT_EQ(job.Failed(0, zero).detail().ranks, std::vector<int>{1});
}

TEST(SetCreations, WhoGivesUpEndsTheAttemptOfAllAndNoOther) {
  for (const int quitter : {0, 1, 2}) {
    Job job(3);
    std::map<int, uint64_t> calls;
    for (const int rank : {0, 1, 2}) {
      if (rank != (quitter + 1) % 3) calls[rank] = job.Call(rank, {{0, 1, 2}, false, ""});
    }
    job.DeliverAll();
    job.rank(quitter).GiveUp(calls[quitter], Status::Timeout("it took too long"));
    job.TakeSteps(quitter);
    job.DeliverAll();
    const int late = (quitter + 1) % 3;
    calls[late] = job.Call(late, {{0, 1, 2}, false, ""});
    job.DeliverAll();
    for (const auto& [rank, call] : calls) {
      EXPECT_EQ(job.Failed(rank, call).code(), StatusCode::kTimeout) << rank << " of " << quitter;
    }
    for (const int rank : {0, 1, 2}) calls[rank] = job.Call(rank, {{0, 1, 2}, false, ""});
    job.DeliverAll();
    for (const auto& [rank, call] : calls) EXPECT_TRUE(job.Begun(rank, call)) << rank;
  }
}

TEST(SetCreations, ASetThatFailsBeforeItBeginsFailsTheCalls) {
  Job job(3);
  std::mt19937 random(1);
  std::map<int, uint64_t> calls;
  for (const int rank : {0, 1, 2}) calls[rank] = job.Call(rank, {{0, 1, 2}, false, ""});
  while (job.set(0).ranks_.empty()) ASSERT_TRUE(job.DeliverOne(random));
  job.rank(0).OnSetFailed(0, 0, Status::Internal("poisoned"));
  job.TakeSteps(0);
  job.DeliverAll();
  for (const auto& [rank, call] : calls)
    EXPECT_EQ(job.Failed(rank, call).code(), StatusCode::kInternal);
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(job.set(rank).ranks_.empty());
}

TEST(SetCreationFrames, SurviveTheWire) {
  for (uint8_t type = 0; type <= 5; ++type) {
    SetCreationFrame frame;
    frame.type = static_cast<SetCreationFrame::Type>(type);
    frame.set = {{3, 1}, true, "tag"};
    frame.call = 1u << 20;
    frame.number = 7;
    frame.cause = {StatusCode::kMismatch, "why", {{3}, -1, ""}};
    const auto bytes = Encode(frame);
    const auto again = DecodeSetCreationFrame(bytes);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(Encode(*again), bytes);
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_FALSE(DecodeSetCreationFrame(std::span(bytes).first(cut)).ok());
    }
  }
}

}  // namespace
}  // namespace horoscale
