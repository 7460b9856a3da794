// metrics(): the counters of a rank, and how they are written as JSON.
//
// The engine's owner has no time to write: it copies its counters, and the thread that asked for
// them writes the JSON. docs/status.md tells what a copy costs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/process_set.h"
#include "runtime/step_times.h"
#include "transport/transport.h"

namespace horoscale {

// What copies have cost the engine's owner.
struct MetricsCost {
  uint64_t copies = 0;
  double seconds = 0;
};

struct Metrics {
  struct Set {
    uint32_t id = 0;
    SetCounters counters;
    SetProgress progress;
  };

  std::vector<Set> sets;
  TransportCounters transported;
  std::vector<std::pair<int, uint64_t>> link_bytes;
  StepTotals steps;
  double waiting_seconds = 0;
  MetricsCost cost;  // of the copies before this one
};

// By the engine's owner. What is specific to a runtime is left for it to set.
Metrics CopyMetrics(const std::map<uint32_t, std::shared_ptr<ProcessSet>>& sets,
                    const Transport& transport, double now);

// By any thread.
std::string MetricsJson(const Metrics& metrics);

}  // namespace horoscale
