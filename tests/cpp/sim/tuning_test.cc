// What the tuner and adaptive compression choose in simulated trainings of three models over twelve
// networks.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tuning/table.h"

namespace horoscale::tuning {
namespace {

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = MakeRows(0.1);
  return rows;
}

std::string Describe(const Row& row) { return Format({row}); }

// Percent of the bytes that are sent as they are.
int Uncompressed(const Row& row) {
  const auto found = row.encodings.find("none");
  return found == row.encodings.end() ? 0 : found->second;
}

TEST(TuningTable, AFastNetworkCompressesNothing) {
  for (const Row& row : Rows()) {
    if (row.setting.megabits == 10'000 && row.setting.latency_seconds == 0) {
      EXPECT_EQ(Uncompressed(row), 100) << Describe(row);
      EXPECT_EQ(row.chosen, row.setting.limits) << Describe(row);
    }
  }
}

TEST(TuningTable, TunedStepsAreNotSlower) {
  for (const Row& row : Rows()) {
    EXPECT_LE(row.tuned_seconds, 1.02 * row.adaptive_seconds) << Describe(row);
    EXPECT_LE(row.tuned_seconds, 1.02 * row.untuned_seconds) << Describe(row);
    EXPECT_GE(row.saved, 0) << Describe(row);
    EXPECT_LE(row.steps, Tuner::kMostMeasuredSteps + Autotuner::kMaxSteps) << Describe(row);
  }
}

TEST(TuningTable, ThePredictionIsNear) {
  for (const Row& row : Rows()) {
    if (row.predicted_seconds == 0) continue;
    EXPECT_NEAR(row.predicted_seconds / row.tuned_seconds, 1, 0.2) << Describe(row);
  }
}

TEST(TuningTable, SlowerNetworksCompressMore) {
  for (const Row& slow : Rows()) {
    for (const Row& fast : Rows()) {
      const bool comparable =
          slow.setting.model.name == fast.setting.model.name && slow.setting.latency_seconds == 0 &&
          fast.setting.latency_seconds == 0 && slow.setting.megabits < fast.setting.megabits;
      if (comparable) {
        EXPECT_LE(Uncompressed(slow), Uncompressed(fast)) << Describe(slow) << Describe(fast);
      }
    }
  }
}

TEST(TuningTable, TheDocumentationShowsIt) {
  std::ifstream file(TUNING_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_NE(page.str().find(Format(Rows())), std::string::npos)
      << "docs/tuning.md differs from the output of tuning_table:\n"
      << Format(Rows());
}

TEST(TuningLog, TellsOfPacePredictionAndEncodings) {
  Training training({.model = Perceptron(),
                     .megabits = 100,
                     .latency_seconds = 0.005,
                     .most_error = 0.1,
                     .searches = true});
  for (int i = 0; i < 300; ++i) training.Step();
  const std::vector<TuningRecord>& log = training.log();
  const auto find = [&](std::string_view what) {
    return std::find_if(log.begin(), log.end(),
                        [&](const TuningRecord& record) { return record.what == what; });
  };
  const auto pace = find("pace");
  ASSERT_NE(pace, log.end());
  EXPECT_LT(pace->limits.partition_bytes, Limits().partition_bytes);
  EXPECT_NE(pace->why.find("bandwidth"), std::string::npos);
  const auto encoding = find("encoding");
  ASSERT_NE(encoding, log.end());
  EXPECT_EQ(encoding->name.substr(0, 5), "layer");
  EXPECT_FALSE(encoding->encoding.empty());
  EXPECT_NE(encoding->why.find("exposed"), std::string::npos);
  const auto predicted = find("predicted");
  ASSERT_NE(predicted, log.end());
  EXPECT_EQ(predicted->limits, Limits());
  EXPECT_GT(predicted->predicted_seconds, 0);
  const auto candidate = find("candidate");
  ASSERT_NE(candidate, log.end());
  EXPECT_GT(candidate->seconds, 0);
  EXPECT_GT(candidate->predicted_seconds, 0);
  EXPECT_TRUE(find("chosen")->is_last);
}

TEST(TuningLog, IsEmptyIfNothingIsTuned) {
  Training training({.model = Perceptron(), .megabits = 100, .most_error = 0.1});
  for (int i = 0; i < 30; ++i) training.Step();
  EXPECT_TRUE(training.log().empty());
}

}  // namespace
}  // namespace horoscale::tuning
