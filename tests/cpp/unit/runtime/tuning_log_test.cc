#include "runtime/tuning_log.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

TEST(TuningLogTest, ABlockHasItsTimes) {
  EXPECT_EQ(TuningLogHeader(),
            "process_set,step,fusion_threshold_bytes,partition_bytes,credit_bytes,pace_seconds,"
            "step_ms,predicted_ms,name,encoding,why,what");
  EXPECT_EQ(TuningLogLine(3, {.step = 7,
                              .limits = {1, 2, 4, 0.012},
                              .seconds = 0.1,
                              .predicted_seconds = 0.09,
                              .what = "candidate"}),
            "3,7,1,2,4,0.012,100.0000,90.0000,,,,candidate");
}

TEST(TuningLogTest, TextIsQuoted) {
  EXPECT_EQ(TuningLogLine(0, {.step = 1,
                              .limits = {1, 2, 4, 0.5},
                              .what = "encoding",
                              .name = "a \"b\"\nc",
                              .encoding = "int8",
                              .why = "exposed 61 ms of 140, bandwidth 12 MB/s"}),
            "0,1,1,2,4,0.5,,,\"a \"\"b\"\" c\",int8,"
            "\"exposed 61 ms of 140, bandwidth 12 MB/s\",encoding");
}

TEST(TuningLogTest, AVerdictNamesTheVariables) {
  const std::string text = DescribeVerdict(
      2, {.step = 50, .limits = {1, 2, 4, 0.048}, .what = "chosen", .is_last = true, .saved = 0.1});
  EXPECT_EQ(text,
            "process set 2 was tuned in 50 steps: steps take 10.0 % less time with "
            "HOROSCALE_FUSION_THRESHOLD=1 HOROSCALE_PARTITION_BYTES=2 HOROSCALE_CREDIT_BYTES=4 "
            "HOROSCALE_PACE_SECONDS=0.048");
}

}  // namespace
}  // namespace horoscale
