// Every fault in every phase, in thousands of random jobs. HOROSCALE_FAULT_SEEDS sets their number,
// HOROSCALE_FAULT_FIRST_SEED the first seed; a failure names its seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "faults/fault_scenario.h"

namespace horoscale::sim {
namespace {

// The seeds are split over this many tests, which run in parallel.
constexpr uint64_t kShares = 4;

uint64_t FromEnvironment(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class FaultSimulation : public ::testing::TestWithParam<uint64_t> {};

TEST_P(FaultSimulation, EachOperationEndsOnceAndTheFirstCauseIsNamed) {
  const uint64_t first = FromEnvironment("HOROSCALE_FAULT_FIRST_SEED", 1);
  const uint64_t count = FromEnvironment("HOROSCALE_FAULT_SEEDS", 10'000);
  uint64_t scenarios[kFaults.size()][kPhases.size()] = {};
  uint64_t struck[kFaults.size()][kPhases.size()] = {};
  uint64_t num_posted = 0;
  uint64_t num_messages = 0;
  for (uint64_t seed = first + GetParam(); seed < first + count; seed += kShares) {
    const size_t fault = seed % kFaults.size();
    const size_t phase = seed / kFaults.size() % kPhases.size();
    SCOPED_TRACE("HOROSCALE_FAULT_SEEDS=1 HOROSCALE_FAULT_FIRST_SEED=" + std::to_string(seed) +
                 ": " + std::string(Name(kFaults[fault])) + ", " +
                 std::string(Name(kPhases[phase])));
    FaultScenario scenario(seed, kFaults[fault], kPhases[phase]);
    scenario.Run();
    ++scenarios[fault][phase];
    struck[fault][phase] += scenario.struck() ? 1 : 0;
    num_posted += scenario.num_posted();
    num_messages += scenario.num_messages();
    if (HasFailure()) return;
  }
  if (count >= 1000) {
    EXPECT_GT(num_posted, 0u) << "no scenario is a test of operations in one hop";
    EXPECT_GT(num_messages, 0u) << "no scenario is a test of messages";
  }
  // `python -m faults` prints it as a table.
  for (size_t fault = 0; fault < kFaults.size(); ++fault) {
    for (size_t phase = 0; phase < kPhases.size(); ++phase) {
      std::cout << "simulated\t" << Name(kFaults[fault]) << '\t' << Name(kPhases[phase]) << '\t'
                << scenarios[fault][phase] << '\t' << struck[fault][phase] << '\n';
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shares, FaultSimulation, testing::Range<uint64_t>(0, kShares));

}  // namespace
}  // namespace horoscale::sim
