#include "core/launch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace horoscale {
namespace {

// Ranks and overlapping sets. Messages take any time but stay in order between two ranks.
class LaunchSimulation {
 public:
  LaunchSimulation(int ranks, std::vector<std::vector<int>> sets, uint64_t entries, unsigned seed)
      : sets_(std::move(sets)),
        entries_(entries),
        orders_(static_cast<size_t>(ranks)),
        launched_(static_cast<size_t>(ranks)),
        random_(seed) {
    for (const auto& members : sets_) collectors_.emplace_back(members.size());
    planned_.resize(sets_.size());
    for (size_t set = 0; set < sets_.size(); ++set) planned_[set].resize(sets_[set].size());
  }

  // Takes steps in random order until there are none.
  void Run() {
    while (Step()) {
    }
  }

  using Launches = std::vector<std::pair<uint32_t, uint64_t>>;
  const Launches& launched(int rank) const { return launched_[static_cast<size_t>(rank)]; }

 private:
  struct Message {
    uint32_t set;
    LaunchStamp stamp;
    bool is_decision;
  };
  using Link = std::pair<int, int>;

  bool Step() {
    std::vector<std::function<void()>> possible;
    for (uint32_t set = 0; set < sets_.size(); ++set) {
      for (size_t member = 0; member < sets_[set].size(); ++member) {
        if (planned_[set][member] < entries_) {
          possible.push_back([=, this] { Plan(set, member); });
        }
        const int rank = sets_[set][member];
        const uint64_t next = CountOf(rank, set) + 1;
        if (orders_[static_cast<size_t>(rank)].IsNext(set, next)) {
          possible.push_back([=, this] { Launch(rank, set, next); });
        }
      }
    }
    for (auto& [link, messages] : links_) {
      if (!messages.empty()) possible.push_back([this, link = link] { Deliver(link); });
    }
    if (possible.empty()) return false;
    possible[random_() % possible.size()]();
    return true;
  }

  void Plan(uint32_t set, size_t member) {
    const int rank = sets_[set][member];
    const uint64_t sequence = ++planned_[set][member];
    const uint64_t stamp = orders_[static_cast<size_t>(rank)].Propose(set, sequence);
    links_[{rank, sets_[set].front()}].push_back({set, {sequence, stamp}, false});
  }

  void Deliver(Link link) {
    const Message message = links_[link].front();
    links_[link].pop_front();
    const std::vector<int>& members = sets_[message.set];
    if (message.is_decision) {
      auto& order = orders_[static_cast<size_t>(link.second)];
      ASSERT_TRUE(order.Agree(message.set, message.stamp).ok());
      return;
    }
    const auto member = std::find(members.begin(), members.end(), link.first) - members.begin();
    const auto decision =
        collectors_[message.set].Add(static_cast<uint32_t>(member), message.stamp);
    ASSERT_TRUE(decision.ok());
    if (!*decision) return;
    for (const int rank : members) {
      links_[{link.second, rank}].push_back({message.set, **decision, true});
    }
  }

  void Launch(int rank, uint32_t set, uint64_t sequence) {
    orders_[static_cast<size_t>(rank)].Remove(set, sequence);
    launched_[static_cast<size_t>(rank)].emplace_back(set, sequence);
  }

  uint64_t CountOf(int rank, uint32_t set) const {
    const Launches& launches = launched(rank);
    return static_cast<uint64_t>(std::count_if(
        launches.begin(), launches.end(), [&](const auto& launch) { return launch.first == set; }));
  }

  const std::vector<std::vector<int>> sets_;
  const uint64_t entries_;
  std::vector<LaunchOrder> orders_;
  std::vector<Launches> launched_;
  std::vector<StampCollector> collectors_;
  std::vector<std::vector<uint64_t>> planned_;  // by set and member
  std::map<Link, std::deque<Message>> links_;
  std::mt19937 random_;
};

// All launches of all ranks fit into one order: any two ranks agree on their common ones, and there
// is no cycle among more.
void ExpectOneOrder(const LaunchSimulation& simulation, int ranks) {
  std::map<std::pair<uint32_t, uint64_t>, int> waits;
  std::vector<size_t> at(static_cast<size_t>(ranks));
  std::map<std::pair<uint32_t, uint64_t>, int> needs;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& launch : simulation.launched(rank)) ++needs[launch];
  }
  for (bool moved = true; moved;) {
    moved = false;
    waits.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& launches = simulation.launched(rank);
      if (at[static_cast<size_t>(rank)] < launches.size()) {
        ++waits[launches[at[static_cast<size_t>(rank)]]];
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& launches = simulation.launched(rank);
      size_t& next = at[static_cast<size_t>(rank)];
      if (next < launches.size() && waits[launches[next]] == needs[launches[next]]) {
        ++next;
        moved = true;
      }
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(at[static_cast<size_t>(rank)], simulation.launched(rank).size()) << "rank " << rank;
  }
}

TEST(LaunchOrder, WhatIsRemovedBeforeItsDecisionHoldsUpNobody) {
  LaunchOrder order;
  const uint64_t first = order.Propose(1, 7);
  const uint64_t second = order.Propose(2, 3);
  EXPECT_TRUE(order.Has(1, 7));
  EXPECT_FALSE(order.Has(1, 8));
  order.Remove(1, 7);  // it will not be launched
  ASSERT_TRUE(order.Agree(2, {3, second}).ok());
  EXPECT_TRUE(order.IsNext(2, 3));
  EXPECT_TRUE(order.Agree(1, {7, first + 10}).ok());  // as in the decision of its peers
  EXPECT_TRUE(order.IsNext(2, 3));
  EXPECT_GT(order.Propose(2, 4), first + 10);
  EXPECT_FALSE(order.Agree(1, {7, first + 10}).ok());  // only once
}

TEST(LaunchOrderTest, OverlappingSetsLaunchEverythingInOneOrder) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 2 + static_cast<int>(random() % 6);
    std::vector<std::vector<int>> sets;
    for (int i = 0; i < 5; ++i) {
      std::vector<int> members;
      for (int rank = 0; rank < ranks; ++rank) {
        if (random() % 2 == 0) members.push_back(rank);
      }
      if (members.size() > 1) sets.push_back(members);
    }
    LaunchSimulation simulation(ranks, sets, 8, seed);
    simulation.Run();
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = std::count_if(sets.begin(), sets.end(), [&](const auto& members) {
        return std::count(members.begin(), members.end(), rank) > 0;
      });
      EXPECT_EQ(simulation.launched(rank).size(), static_cast<size_t>(own) * 8) << "seed " << seed;
    }
    ExpectOneOrder(simulation, ranks);
  }
}

TEST(LaunchOrderTest, ASetThatEndsHoldsUpNobody) {
  LaunchOrder order;
  (void)order.Propose(1, 1);  // never agreed on
  const uint64_t stamp = order.Propose(2, 1);
  ASSERT_TRUE(order.Agree(2, {1, stamp}).ok());
  EXPECT_FALSE(order.IsNext(2, 1));
  order.RemoveSet(1);
  EXPECT_TRUE(order.IsNext(2, 1));
}

TEST(LaunchOrderTest, StrangeStampsAreRefused) {
  LaunchOrder order;
  (void)order.Propose(1, 1);
  (void)order.Propose(1, 2);
  EXPECT_EQ(order.Agree(1, {3, 9}).code(), StatusCode::kProtocol);
  EXPECT_EQ(order.Agree(1, {2, 1}).code(), StatusCode::kProtocol);
  StampCollector collector(2);
  ASSERT_TRUE(collector.Add(0, {1, 5}).ok());
  EXPECT_FALSE(collector.Add(0, {1, 6}).ok());
  EXPECT_FALSE(collector.Add(0, {2, 5}).ok());
  EXPECT_FALSE(DecodeLaunchStamp({}).ok());
  const LaunchStamp stamp{300, 70000};
  EXPECT_EQ(*DecodeLaunchStamp(Encode(stamp)), stamp);
}

TEST(LaunchOrder, TellsWhatIsNextTogether) {
  constexpr uint64_t kMessages = 100;
  LaunchOrder order;
  for (const uint64_t sequence : {uint64_t{101}, uint64_t{102}, uint64_t{103}}) {
    order.Propose(1, sequence);
  }
  order.Propose(2, 101);
  order.Propose(1, 104);
  EXPECT_EQ(order.NextOf(1, kMessages), std::vector<uint64_t>());  // nothing is agreed on
  ASSERT_TRUE(order.Agree(1, {102, 2}).ok());
  EXPECT_EQ(order.NextOf(1, kMessages), std::vector<uint64_t>());
  ASSERT_TRUE(order.Agree(1, {101, 1}).ok());
  EXPECT_EQ(order.NextOf(1, kMessages), (std::vector<uint64_t>{101, 102}));
  ASSERT_TRUE(order.Agree(1, {103, 3}).ok());
  ASSERT_TRUE(order.Agree(1, {104, 5}).ok());
  EXPECT_EQ(order.NextOf(1, kMessages), (std::vector<uint64_t>{101, 102, 103}));  // then set 2
  EXPECT_EQ(order.NextOf(2, kMessages), std::vector<uint64_t>());
  EXPECT_EQ(order.NextOf(1, 102), std::vector<uint64_t>());  // another operation is first
  order.RemoveSet(2);
  EXPECT_EQ(order.NextOf(1, kMessages), (std::vector<uint64_t>{101, 102, 103, 104}));
}

}  // namespace
}  // namespace horoscale
