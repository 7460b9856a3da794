// The deciding half of a process set, at its lowest rank: reports in, plan entries out. Pure.
//
// It composes the Negotiator (what is ready on every member?), the SlotTable of the response cache
// (who may take which slot?), the Scheduler (what is most urgent, within the credit?), the
// FusionPlanner (what goes together?) and the StallWatch (who keeps the others waiting?).
// Members are indices 0 … size-1 into the set's sorted global ranks. Time is an argument, in seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/fusion_planner.h"
#include "core/messages.h"
#include "core/negotiator.h"
#include "core/scheduler.h"
#include "core/slot_table.h"
#include "core/stall_watch.h"

namespace horoscale {

struct CoordinatorOptions {
  int process_set_id = 0;
  std::vector<int> ranks;                  // sorted global ranks of the members
  size_t cache_capacity = 1024;
  int64_t fusion_threshold_bytes = 128 << 20;
  int64_t partition_bytes = 16 << 20;      // tensors above are cut; 0: never
  int64_t credit_bytes = 64 << 20;         // published and not yet executed, at most (one bucket always may)
  bool priority_scheduling = true;         // false: first in, first out
  double stall_warning_seconds = 60;       // 0: no reports
};

class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);

  // Takes a report of a member; kProtocol if it can't be (unknown slot, key reported twice).
  Status OnReport(uint32_t member, const Report& report, double now);

  // The entries that can be published now, in order, within the credit.
  std::vector<PlanEntry> TakePlan(double now);

  // The local member has executed the entry: its bytes return to the credit.
  void OnExecuted(uint64_t sequence);

  // Whether TakePlan() could return something.
  bool HasWork() const;

  // Units that have waited too long, each said once per warning period.
  std::vector<StallReport> TakeStallReports(double now);

 private:
  CoordinatorOptions options_;
  Negotiator negotiator_;
  SlotTable slots_;
  Scheduler scheduler_;
  FusionPlanner planner_;
  StallWatch stall_watch_;
  uint64_t next_sequence_ = 1;
};

}  // namespace horoscale
