#include "runtime/step_times.h"

#include <gtest/gtest.h>

#include <string>

#include "platform/clock.h"

namespace horoscale {
namespace {

// Spins until the clock has advanced, so that a measured wait is above zero.
double Later(double seconds = 1e-4) {
  const double until = MonotonicSeconds() + seconds;
  double now = MonotonicSeconds();
  while (now < until) now = MonotonicSeconds();
  return now;
}

class StepTimesTest : public ::testing::Test {
 protected:
  WaitingTime waits_;
  StepTimes times_{waits_};
};

TEST_F(StepTimesTest, AStepIsFromOneSubmissionOfANameToTheNext) {
  times_.OnSubmitted("first", 1);  // seen only once, like all start-up operations
  for (const double at : {2.0, 4.0, 5.0}) {
    times_.OnSubmitted("weight", at);
    times_.OnSubmitted("bias", at + 0.5);
  }
  EXPECT_EQ(times_.totals().steps, 1u);  // the first two uses start the count
  EXPECT_DOUBLE_EQ(times_.totals().seconds, 1);
}

TEST_F(StepTimesTest, UnnamedOperationsTellNoSteps) {
  for (int i = 0; i < 5; ++i) times_.OnSubmitted("", i);
  EXPECT_EQ(times_.totals().steps, 0u);
}

TEST_F(StepTimesTest, ANameThatComesNoMoreIsGivenUp) {
  for (const double at : {0.0, 0.1, 0.2, 0.3}) times_.OnSubmitted("warm up", at);
  EXPECT_EQ(times_.totals().steps, 2u);
  for (const double at : {0.4, 0.5, 0.6}) times_.OnSubmitted("weight", at);
  EXPECT_EQ(times_.totals().steps, 2u);
  for (const double at : {3.0, 3.1, 3.2, 3.3}) times_.OnSubmitted("weight", at);
  EXPECT_EQ(times_.totals().steps, 4u);
  EXPECT_NEAR(times_.totals().seconds, 0.4, 1e-9);
}

TEST_F(StepTimesTest, NamesThatNeverComeAgainTakeNoMemoryForEver) {
  for (int i = 0; i < 100000; ++i) times_.OnSubmitted("once " + std::to_string(i), i);
  EXPECT_EQ(times_.totals().steps, 0u);
  // The first use is forgotten, so two more are needed to start the count.
  for (int i = 0; i < 3; ++i) times_.OnSubmitted("once 0", 100000 + i);
  EXPECT_EQ(times_.totals().steps, 1u);
}

TEST_F(StepTimesTest, BlockedTimeIsExposedWhereABucketIsExecutedAndWaitingElsewhere) {
  const double begin = MonotonicSeconds();
  times_.OnSubmitted("weight", begin);
  times_.OnSubmitted("weight", begin);
  const double hidden = MonotonicSeconds();
  times_.OnExecuted(hidden, Later());  // nobody is blocked
  waits_.Begin();
  const double executed = Later();
  const double done = Later();
  times_.OnExecuted(executed, done);
  times_.OnExecuted(executed, done);  // on another set, at the same time
  waits_.End();
  times_.OnSubmitted("weight", begin + 1);
  const StepTotals& totals = times_.totals();
  EXPECT_NEAR(totals.exposed_seconds, done - executed, 1e-9);
  EXPECT_NEAR(totals.waiting_seconds, waits_.Seconds() - (done - executed), 1e-9);
  EXPECT_DOUBLE_EQ(totals.seconds, 1);
}

TEST_F(StepTimesTest, AWaitThatIsOverCountsAsFarAsTheBucketWasExecutedMeanwhile) {
  const double started = MonotonicSeconds();
  waits_.Begin();
  Later();
  waits_.End();
  const double waited = waits_.Seconds();
  const double done = Later();
  EXPECT_NEAR(waits_.Within(started, done), waited, 1e-9);
  EXPECT_EQ(waits_.Within(done, done + 1), 0);
}

}  // namespace
}  // namespace horoscale
