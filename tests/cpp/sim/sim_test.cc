// Thousands of random jobs, each from one seed, in one thread. HOROSCALE_SIM_SEEDS sets their
// number, HOROSCALE_SIM_FIRST_SEED the first seed; a failure names its seed.

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "sim/random.h"
#include "sim/simulated_set.h"
#include "sim/workload.h"

namespace horoscale::sim {
namespace {

uint64_t FromEnvironment(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

CoordinatorOptions RandomOptions(Random& random, int id, std::vector<int> ranks) {
  CoordinatorOptions options;
  options.process_set_id = id;
  options.ranks = std::move(ranks);
  options.cache_capacity = random.Pick<size_t>({0, 1, 2, 5, 20, 1024});
  options.limits.fusion_threshold_bytes = random.Pick<int64_t>({1, 300, 2000, 1 << 20});
  options.limits.partition_bytes = random.Pick<int64_t>({0, 1, 512, 4096});
  options.limits.credit_bytes = random.Pick<int64_t>({1, 1000, 8000, 1 << 24});
  options.priority_scheduling = random.Chance(80);
  options.spans_hosts = random.Chance(50);
  return options;
}

class Job {
 public:
  explicit Job(uint64_t seed) : random_(seed), size_(random_.Between(1, 16)) {
    std::vector<int> all(size_);
    std::iota(all.begin(), all.end(), 0);
    AddSet(0, all, random_.Chance(40));
    const int more = random_.Between(0, 3);
    for (int id = 1; id <= more; ++id) {
      std::vector<int> ranks;
      for (int rank = 0; rank < size_; ++rank) {
        if (random_.Chance(50)) ranks.push_back(rank);
      }
      if (!ranks.empty()) AddSet(id, ranks, false);
    }
  }

  void Run() {
    const int lost_rank = random_.Chance(10) ? random_.Between(0, size_ - 1) : -1;
    uint64_t steps_left = lost_rank < 0 ? UINT64_MAX : random_.Below(3000);
    size_t idle = 0;
    while (idle < 50 || SweepAll()) {
      const bool did = sets_[random_.Below(sets_.size())]->Step();
      idle = did || idle >= 50 ? 0 : idle + 1;
      if (steps_left-- == 0) LoseRank(lost_rank);
    }
    for (auto& set : sets_) set->CheckEnd();
  }

  // The numbers of operations that ended by posts alone: in all, between hosts, and named.
  uint64_t NumPosted() const {
    uint64_t count = 0;
    for (const auto& set : sets_) count += set->num_posted();
    return count;
  }
  uint64_t NumPostedBetweenHosts() const {
    uint64_t count = 0;
    for (const auto& set : sets_) count += set->num_posted_between_hosts();
    return count;
  }
  uint64_t NumNamedPosted() const {
    uint64_t count = 0;
    for (const auto& set : sets_) count += set->num_named_posted();
    return count;
  }

 private:
  void AddSet(int id, const std::vector<int>& ranks, bool joins) {
    const WorkloadOptions options{
        .joins = joins, .mismatches = random_.Chance(40), .shapes_change = random_.Chance(40)};
    std::vector<Epoch> epochs = MakeWorkload(random_, options, ranks);
    sets_.push_back(std::make_unique<SimulatedSet>(RandomOptions(random_, id, ranks),
                                                   std::move(epochs), joins, random_));
  }

  // Sets without the lost rank continue.
  void LoseRank(int rank) {
    for (auto& set : sets_) {
      if (set->HasRank(rank)) set->LoseMember();
    }
  }

  bool SweepAll() {
    bool any = false;
    for (auto& set : sets_) any = set->Sweep() || any;
    return any;
  }

  Random random_;
  int size_;
  std::vector<std::unique_ptr<SimulatedSet>> sets_;
};

TEST(Simulation, RandomJobsKeepTheInvariants) {
  const uint64_t first = FromEnvironment("HOROSCALE_SIM_FIRST_SEED", 1);
  const uint64_t count = FromEnvironment("HOROSCALE_SIM_SEEDS", 1000);
  uint64_t num_posted = 0;
  uint64_t num_between_hosts = 0;
  uint64_t num_named = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("HOROSCALE_SIM_FIRST_SEED=" + std::to_string(seed));
    Job job(seed);
    job.Run();
    num_posted += job.NumPosted();
    num_between_hosts += job.NumPostedBetweenHosts();
    num_named += job.NumNamedPosted();
    if (::testing::Test::HasFailure()) return;
  }
  if (count < 200) return;
  EXPECT_GT(5 * num_posted, count) << "too few are posted for this to be a test of them";
  EXPECT_GT(5 * num_between_hosts, count) << "too few of them between hosts";
  EXPECT_GT(5 * num_named, count) << "too few of them have a name";
}

}  // namespace
}  // namespace horoscale::sim
