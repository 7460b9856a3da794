#include "core/step_tail.h"

#include <gtest/gtest.h>

#include <string_view>

#include "core/encoding_chooser.h"
#include "unit/core/core_cluster.h"

namespace horoscale {
namespace {

TEST(StepTail, OnlyWhatFollowsTheLastOperationIsExposed) {
  StepTail tail;
  tail.OnReady(false, 1);
  tail.OnExecuted(0.5, 1.5);  // while the second operation is computed
  tail.OnReady(false, 2);
  tail.OnExecuted(0.8, 2.5);  // 0.3 of it before
  tail.OnExecuted(0.4, 2.9);
  EXPECT_EQ(tail.Take(), 0) << "the step may have more operations";
  tail.OnReady(true, 4);
  EXPECT_DOUBLE_EQ(tail.Take(), 0.9);
  EXPECT_EQ(tail.Take(), 0);
}

TEST(StepTail, ABucketThatEndedBeforeIsHidden) {
  StepTail tail;
  tail.OnReady(false, 5);
  tail.OnExecuted(1, 4);
  tail.OnReady(true, 6);
  EXPECT_EQ(tail.Take(), 0);
}

TEST(StepTail, StepsOfOneOperationHideNothing) {
  StepTail tail;
  for (int step = 0; step < 3; ++step) {
    tail.OnReady(step > 0, step);
    tail.OnExecuted(0.5, step + 0.6);
  }
  EXPECT_DOUBLE_EQ(tail.Take(), 1);
}

// Steps of two operations of 1 MiB, in any order, which take 0.1 s each if they are not compressed.
class TwoOperations {
 public:
  explicit TwoOperations(bool calls_back) : calls_back_(calls_back) {
    signature_ = Allreduce({1 << 18});
    signature_.encoding = {EncodingKind::kAdaptive, 1000};
  }

  // The second one is ready `late` after the first one.
  void Run(int steps, double late, double seconds) {
    for (int i = 0; i < steps; ++i, begin_ += seconds) {
      const bool in_order = i % 2 == 0;
      Send(in_order ? "a" : "b", begin_);
      if (i > 0) chooser_.OnStep(seconds);
      Send(in_order ? "b" : "a", begin_ + late);
    }
  }

  EncodingKind chosen() const { return chosen_; }

 private:
  // A program that is called back is never seen to be blocked.
  void Send(std::string_view name, double ready) {
    const Encoding encoding = chooser_.Choose(name, signature_, 0, ready);
    const double seconds = 0.1 * encoding.BytesPerElement(DataType::kFloat32) / 4;
    EncodingChooser::Bucket bucket;
    bucket.bytes = 1 << 20;
    bucket.encoding = encoding;
    bucket.seconds = seconds;
    bucket.ended_at = ready + seconds;
    bucket.calls_back = calls_back_;
    chooser_.OnBucket(bucket);
    chosen_ = encoding.kind;
  }

  const bool calls_back_;
  Signature signature_;
  EncodingChooser chooser_;
  double begin_ = 1;
  EncodingKind chosen_ = EncodingKind::kNone;
};

TEST(StepTail, TellsTheChooserWhatAProgramThatIsCalledBackWaitsFor) {
  TwoOperations steps(true);
  steps.Run(10, 0.2, 0.4);
  EXPECT_EQ(steps.chosen(), EncodingKind::kInt8) << "a quarter of the step is exposed";
}

TEST(StepTail, IsNotOfProgramsThatWait) {
  TwoOperations steps(false);
  steps.Run(10, 0.2, 0.4);
  EXPECT_EQ(steps.chosen(), EncodingKind::kNone);
}

TEST(StepTail, AShortTailCompressesNothing) {
  TwoOperations steps(true);
  steps.Run(10, 5, 10);  // 1%
  EXPECT_EQ(steps.chosen(), EncodingKind::kNone);
}

}  // namespace
}  // namespace horoscale
