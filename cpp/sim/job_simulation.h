// A large job's control plane in one thread: the real Member and Coordinator, and a model of the
// links between them. Tells what a step costs in messages, bytes and time.
//
// The model: a message costs each end a fixed time of its processor, occupies both network
// interfaces for its bytes, and is under way for the link's latency. What the core itself takes is
// measured while it runs (processor time of this thread), and goes to the rank that would run it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/coordinator.h"
#include "core/member.h"

namespace horoscale::sim {

struct JobModel {
  uint32_t ranks = 2;
  uint32_t tensors = 160;  // allreduced in each step, all submitted at its beginning
  int64_t tensor_bytes = 1 << 18;
  double link_seconds = 5e-6;
  double message_seconds = 5e-7;  // of the processor, at each end
  double bytes_per_second = 12.5e9;
  double jitter_seconds = 0;  // each rank begins its step at random within this
  uint64_t seed = 1;
  bool measure = true;  // false: the core takes no time, and the results are always the same
  // Members with the same history behave alike. False: one stands for all but the coordinator's
  // own, which saves much memory; true: each rank has its own.
  bool own_members = false;
};

struct StepCost {
  double seconds = 0;  // until the last rank knows what to execute
  uint64_t messages = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
  uint64_t coordinator_messages = 0;    // sent and received by the coordinator's rank
  double coordinator_core_seconds = 0;  // of the core, at the coordinator's rank
  double member_core_seconds = 0;       // of the core, at the last rank
};

class JobSimulation {
 public:
  explicit JobSimulation(const JobModel& model);

  // The next step of the job. The first one is cold: nothing is in the cache.
  Result<StepCost> Step();

 private:
  using Bytes = std::vector<std::byte>;
  struct Node {
    double processor = 0;  // when it is free
    double sending = 0;    // when its network interface is free
    double receiving = 0;
  };
  struct Arrival {
    double at;
    uint32_t rank;
    const Bytes* report;
  };

  double Random();
  double BytesSeconds(size_t bytes) const;
  bool IsReal(uint32_t rank) const { return rank < members_.size(); }
  double Send(uint32_t from, size_t bytes);
  void Receive(uint32_t to, double arrival, size_t bytes);

  void Submit();
  void MakeReports();
  std::vector<Arrival> SendReports();
  Status Collect(const std::vector<Arrival>& arrivals);
  Status Publish();
  Status Apply(uint32_t rank, const Bytes& entry, double* seconds);

  JobModel model_;
  CoordinatorOptions options_;
  Coordinator coordinator_;
  std::vector<Member> members_;
  std::vector<std::vector<Bytes>> reports_;  // of this step, by member
  std::vector<Node> nodes_;
  uint64_t random_;
  Token next_token_ = 1;
  StepCost cost_;
};

}  // namespace horoscale::sim
