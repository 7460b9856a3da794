// Simulates the control plane of a large job in one thread: the real Member, Aggregator and
// Coordinator, and a model of their links. Measures the messages, bytes and time of a step.
//
// In the flat mode, every member reports to the coordinator. In a tree, the lowest rank of each
// host combines the reports of its host and of the hosts below, and forwards the plan.
//
// Model: a message costs a fixed processor time on each side, occupies both network interfaces for
// its bytes, and takes the link's latency. The processor time of the core is measured while it runs
// in this thread, and charged to the rank that would run it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "core/aggregator.h"
#include "core/coordinator.h"
#include "core/member.h"
#include "core/report_tree.h"

namespace horoscale::sim {

struct JobModel {
  uint32_t ranks = 2;
  uint32_t tensors = 160;  // allreduced in each step, all submitted at its beginning
  int64_t tensor_bytes = 1 << 18;
  double link_seconds = 5e-6;
  double message_seconds = 5e-7;  // of the processor, at each end
  double bytes_per_second = 12.5e9;
  uint32_t ranks_per_host = 0;             // 0: flat, each rank a host of its own
  uint32_t fan_out = ReportTree::kFanOut;  // of the tree of hosts
  double local_link_seconds = 3e-7;        // inside a host, where messages take no bandwidth
  double local_message_seconds = 1e-7;
  double patience_seconds = Aggregator::kPatienceSeconds;  // of the aggregators
  double jitter_seconds = 0;  // random delay of each rank's start, at most this
  uint64_t seed = 1;
  bool measure = true;  // false: the core takes no time, and results are deterministic
  // Members with the same history behave identically. False: one Member represents all except the
  // coordinator's own, which saves memory. True: each rank has its own.
  bool own_members = false;
};

struct StepCost {
  double seconds = 0;     // until the last rank has received the plan
  uint64_t messages = 0;  // between hosts
  uint64_t local_messages = 0;
  uint64_t bytes = 0;  // between hosts
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
    std::unique_ptr<Aggregator> aggregator;  // of a rank with children, the coordinator's excepted
    double processor = 0;                    // when it is free
    double sending = 0;                      // when its network interface is free
    double receiving = 0;
  };
  struct Message {
    double at;  // when its last byte arrives
    uint32_t from;
    bool is_group;
    std::shared_ptr<const Bytes> bytes;
  };

  bool IsLocal(uint32_t a, uint32_t b) const;
  double Random();
  bool IsReal(uint32_t rank) const { return rank < members_.size(); }
  template <typename Function>
  void Charge(uint32_t rank, Function function);
  void ChargeLike(uint32_t rank, double seconds);
  double Send(uint32_t from, uint32_t to, size_t bytes);
  void Receive(uint32_t from, uint32_t to, double arrival, size_t bytes);

  void Submit();
  void MakeReports();
  Status Collect();
  Status Take(uint32_t rank, const Message& message);
  Status Hand(uint32_t rank, const GroupReport& report);
  void PassOn(uint32_t rank);
  Status Publish();
  Status PassDown(const Bytes& entry);
  Status Apply(uint32_t rank, const Bytes& entry);

  JobModel model_;
  CoordinatorOptions options_;
  Coordinator coordinator_;
  std::vector<Member> members_;
  std::vector<std::vector<Report>> reports_;  // of this step, by member
  const ReportTree tree_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Message>> inbox_;  // of this step, by rank
  double applying_ = 0;                      // what the last Apply() of a real member took
  uint64_t random_;
  Token next_token_ = 1;
  StepCost cost_;
};

}  // namespace horoscale::sim
