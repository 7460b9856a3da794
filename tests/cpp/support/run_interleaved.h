// Runs one operation on all members of a FickleHub, in one thread.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/collective_cases.h"
#include "support/fickle_exchange.h"

namespace horoscale::testing {

// Steps the collectives in turn until all are done; they must not fail, nor all be stuck.
inline void StepAll(std::vector<std::unique_ptr<Collective>>& running) {
  for (size_t done = 0; done < running.size();) {
    bool moved = false;
    for (std::unique_ptr<Collective>& one : running) {
      if (one == nullptr) continue;
      const Result<Progress> progress = one->Step();
      ASSERT_TRUE(progress.ok()) << progress.status().message();
      moved = moved || *progress != Progress::kIdle;
      if (*progress != Progress::kDone) continue;
      one.reset();
      ++done;
    }
    ASSERT_TRUE(moved) << "nobody can go on";
  }
}

// Steps the members' collectives in random order until all are done. Returns a description of the
// error, or an empty string.
inline std::string RunInterleaved(std::mt19937_64& random, FickleHub& hub,
                                  CollectiveCase& operation) {
  std::vector<std::unique_ptr<Collective>> running;
  for (uint32_t m = 0; m < hub.size(); ++m) running.push_back(operation.Make(hub.member(m)));
  size_t left = running.size();
  for (int idle = 0; left > 0;) {
    std::unique_ptr<Collective>& one = running[random() % running.size()];
    if (one == nullptr) continue;
    const Result<Progress> progress = one->Step();
    if (!progress.ok()) return progress.status().message();
    idle = *progress == Progress::kIdle ? idle + 1 : 0;
    if (idle > 100'000) return "nobody can go on";
    if (*progress != Progress::kDone) continue;
    one.reset();
    --left;
  }
  for (uint32_t m = 1; m < hub.size(); ++m) {
    if (hub.member(m).next_round != hub.member(0).next_round) return "rounds are out of step";
  }
  return operation.Check();
}

}  // namespace horoscale::testing
