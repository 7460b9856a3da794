// A rank with damaged frames: the other rank's operations end whatever the frames contain. The
// fuzzer of runtimes (fuzz/runtime_fuzzer.cc) searches for more cases.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "platform/log.h"
#include "support/damaged_job.h"

namespace horoscale::testing {
namespace {

TEST(DamagedTest, EveryOperationEnds) {
  ConfigureLog(LogLevel::kOff, false, -1);
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::minstd_rand random(seed + 1);
    // A zero leaves a frame unchanged, so that the share of damaged frames differs between jobs.
    const uint32_t share = 1 + random() % 40;
    std::vector<uint8_t> bytes(400);
    for (uint8_t& one : bytes) {
      one = random() % 40 < share ? static_cast<uint8_t>(random() >> 8) : uint8_t{0};
    }
    DamagedJob job(bytes);
    EXPECT_TRUE(job.Run()) << "seed " << seed;
  }
  ConfigureLog(LogLevel::kWarning, true, -1);
}

TEST(DamagedTest, NoneIsDamagedWhereThereAreNoBytes) {
  DamagedJob job({});
  EXPECT_TRUE(job.Run());
  for (const OperationPtr& operation : job.begun()) {
    EXPECT_TRUE(operation->status.ok()) << operation->status.message();
  }
}

}  // namespace
}  // namespace horoscale::testing
