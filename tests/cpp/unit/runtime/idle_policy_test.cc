// When a waiting thread polls, yields and sleeps.
#include "runtime/idle_policy.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

constexpr double kPollSeconds = 0.25e-6;
constexpr double kQuickYield = 0.5e-6;
constexpr double kLongYield = 20e-6;

// A thread that waits in vain, and whose yields all take the same time.
struct Waiter {
  IdlePolicy policy;
  double now = 100;
  int polls = 0;
  int yields = 0;

  // Polls until the policy tells it to yield or sleep; returns whether it yielded.
  bool UntilYield(double yield_seconds) {
    do {
      ++polls;
      now += kPollSeconds;
    } while (policy.PollsAgain());
    if (!policy.Yields(now)) return false;
    ++yields;
    now += yield_seconds;
    policy.OnYielded(yield_seconds);
    return true;
  }
  // Waits until it sleeps; returns for how long.
  double UntilSleep(double yield_seconds) {
    const double began = now;
    while (UntilYield(yield_seconds)) {
    }
    policy.Begin();
    return now - began;
  }
};

TEST(IdlePolicy, PollsBeforeTheFirstYieldWhereItHasACore) {
  Waiter waiter;
  ASSERT_TRUE(waiter.UntilYield(kQuickYield));
  EXPECT_EQ(waiter.polls, IdlePolicy::kPolls + 1);
  // From then on it yields between any two polls.
  ASSERT_TRUE(waiter.UntilYield(kQuickYield));
  EXPECT_EQ(waiter.polls, IdlePolicy::kPolls + 2);
}

TEST(IdlePolicy, SleepsSoonWhereItHasACore) {
  Waiter waiter;
  const double waited = waiter.UntilSleep(kQuickYield);
  EXPECT_LT(waited, IdlePolicy::kOwnTime + (IdlePolicy::kPolls + 3) * kPollSeconds + kQuickYield);
  EXPECT_GE(waited, IdlePolicy::kOwnTime);
}

TEST(IdlePolicy, PollsOnceBetweenYieldsOnASharedCore) {
  Waiter waiter;
  ASSERT_TRUE(waiter.UntilYield(kLongYield));
  waiter.policy.Begin();
  waiter.polls = 0;
  ASSERT_TRUE(waiter.UntilYield(kLongYield));
  EXPECT_EQ(waiter.polls, 2);  // never zero: the first poll found progress
  ASSERT_TRUE(waiter.UntilYield(kLongYield));
  EXPECT_EQ(waiter.polls, 3);
}

TEST(IdlePolicy, WaitsLongerOnASharedCoreButNotForEver) {
  Waiter waiter;
  const double waited = waiter.UntilSleep(kLongYield);
  EXPECT_GE(waited, IdlePolicy::kAllTime);
  EXPECT_LT(waited, IdlePolicy::kAllTime + IdlePolicy::kPolls * kPollSeconds + 2 * kLongYield);
  // On a shared core it may use as much processor time as on its own core.
  EXPECT_LE(waiter.polls * kPollSeconds,
            IdlePolicy::kOwnTime + (IdlePolicy::kPolls + 2) * kPollSeconds);
}

TEST(IdlePolicy, CountsItsOwnTimeAmongOthersTime) {
  Waiter waiter;
  // Yields just long enough to count as shared: a seventh of each turn is its own time.
  const double yield = IdlePolicy::kSharedYield * 1.01;
  const double waited = waiter.UntilSleep(yield);
  EXPECT_GE(waited, waiter.yields * yield);
  EXPECT_NEAR(waiter.polls * kPollSeconds, IdlePolicy::kOwnTime,
              (IdlePolicy::kPolls + 3) * kPollSeconds);
}

TEST(IdlePolicy, PollsAgainWhereTheOthersHaveGone) {
  Waiter waiter;
  ASSERT_TRUE(waiter.UntilYield(kLongYield));
  for (int i = 0; i < IdlePolicy::kQuickYields; ++i) {
    ASSERT_TRUE(waiter.UntilYield(kQuickYield));
    waiter.policy.Begin();
  }
  waiter.polls = 0;
  ASSERT_TRUE(waiter.UntilYield(kQuickYield));
  EXPECT_EQ(waiter.polls, IdlePolicy::kPolls + 1);
}

// The scheduler may consider the other process to have had its share of the core.
TEST(IdlePolicy, AYieldThatFindsNobodyDoesNotMakeTheCoreItsOwn) {
  Waiter waiter;
  ASSERT_TRUE(waiter.UntilYield(kLongYield));
  ASSERT_TRUE(waiter.UntilYield(kQuickYield));
  waiter.policy.Begin();
  waiter.polls = 0;
  ASSERT_TRUE(waiter.UntilYield(kLongYield));
  EXPECT_EQ(waiter.polls, 2);
}

// Enough yields for the policy to learn how long they take and whether other threads run.
void Learn(Waiter& waiter, double yield_seconds) {
  while (waiter.yields < IdlePolicy::kSamples + IdlePolicy::kQuickYields) {
    if (!waiter.UntilYield(yield_seconds)) waiter.policy.Begin();
  }
  waiter.policy.Begin();
  waiter.polls = 0;
}

TEST(IdlePolicy, KnowsItsOwnCoreWhereYieldsAreSlow) {
  constexpr double kSlowYield = 2 * IdlePolicy::kSharedYield;
  Waiter waiter;
  Learn(waiter, kSlowYield);
  ASSERT_TRUE(waiter.UntilYield(kSlowYield * 1.3));
  EXPECT_EQ(waiter.polls, IdlePolicy::kPolls + 1);
  waiter.policy.Begin();
  const double waited = waiter.UntilSleep(kSlowYield);
  EXPECT_LT(waited, IdlePolicy::kOwnTime + (IdlePolicy::kPolls + 3) * kPollSeconds + kSlowYield);
}

TEST(IdlePolicy, SeesASharedCoreWhereYieldsAreSlow) {
  constexpr double kSlowYield = 2 * IdlePolicy::kSharedYield;
  Waiter waiter;
  Learn(waiter, kSlowYield);
  ASSERT_TRUE(waiter.UntilYield(2.5 * kSlowYield));
  waiter.policy.Begin();
  waiter.polls = 0;
  ASSERT_TRUE(waiter.UntilYield(2.5 * kSlowYield));
  EXPECT_EQ(waiter.polls, 2);
}

// Time that others use is no measure of a yield's cost, however long it lasts.
TEST(IdlePolicy, ACoreThatIsSharedFromTheBeginningStaysShared) {
  Waiter waiter;
  Learn(waiter, 1.5 * IdlePolicy::kLongestOwnYield);
  ASSERT_TRUE(waiter.UntilYield(1.5 * IdlePolicy::kLongestOwnYield));
  EXPECT_LE(waiter.polls, 2);
}

TEST(IdlePolicy, OneQuickYieldIsEnoughToKnowWhatTheyCost) {
  Waiter waiter;
  Learn(waiter, 2 * IdlePolicy::kSharedYield);
  ASSERT_TRUE(waiter.UntilYield(kQuickYield));
  ASSERT_TRUE(waiter.UntilYield(2 * IdlePolicy::kSharedYield));
  waiter.policy.Begin();
  waiter.polls = 0;
  ASSERT_TRUE(waiter.UntilYield(2 * IdlePolicy::kSharedYield));
  EXPECT_EQ(waiter.polls, 2);
}

TEST(IdlePolicy, BeginsAnewAfterSleep) {
  Waiter waiter;
  const double first = waiter.UntilSleep(kQuickYield);
  EXPECT_NEAR(waiter.UntilSleep(kQuickYield), first, 1e-9);
}

}  // namespace
}  // namespace horoscale
