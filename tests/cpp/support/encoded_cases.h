// What the tests of encoded collectives share: layouts of members on hosts, encodings, and steps.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/encoding.h"
#include "collectives/collective.h"

namespace horoscale::testing {

using Hosts = std::vector<uint32_t>;  // of each member
using Floats = std::vector<float>;

inline const std::vector<Hosts> kHostLayouts = {
    {0, 1},          {0, 0, 1, 1},       {0, 0, 0, 1},    {0, 1, 2},
    {0, 1, 0, 1, 2}, {0, 0, 1, 1, 2, 2}, {0, 1, 1, 0, 2}, {0, 1, 2, 3, 4}};
inline const std::vector<Encoding> kLossyEncodings = {{EncodingKind::kInt8},
                                                      {EncodingKind::kInt4},
                                                      {EncodingKind::kOneBit},
                                                      {EncodingKind::kTopK, 400}};

// Steps them in turn until all are done, also where the exchange returns "not yet" to all of them.
inline void StepPatiently(std::vector<std::unique_ptr<Collective>>& running) {
  int idle = 0;
  for (size_t done = 0; done < running.size();) {
    for (std::unique_ptr<Collective>& one : running) {
      if (one == nullptr) continue;
      const Result<Progress> progress = one->Step();
      ASSERT_TRUE(progress.ok()) << progress.status().message();
      idle = *progress == Progress::kIdle ? idle + 1 : 0;
      if (*progress != Progress::kDone) continue;
      one.reset();
      ++done;
    }
    ASSERT_LT(idle, 10'000) << "nobody can go on";
  }
}

}  // namespace horoscale::testing
