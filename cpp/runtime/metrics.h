// Metrics: the counters of a rank, and their JSON format.
//
// The owner of the engine only copies its counters; the thread that requested them formats the
// JSON.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/lateness.h"
#include "runtime/process_set.h"
#include "runtime/step_times.h"
#include "transport/transport.h"

namespace horoscale {

// What copies have cost the owner of the engine.
struct MetricsCost {
  uint64_t copies = 0;
  double seconds = 0;
};

struct Metrics {
  struct Set {
    uint32_t id = 0;
    SetCounters counters;
    SetProgress progress;
    std::vector<std::pair<int, Lateness::Member>> late;  // by rank; who was ever the last
  };

  std::vector<Set> sets;
  TransportCounters transported;
  std::vector<std::pair<int, uint64_t>> link_bytes;
  StepTotals steps;
  double waiting_seconds = 0;
  MetricsCost cost;  // of the copies before this one
};

// Called by the owner of the engine, which sets the members that are specific to a runtime. Reuses
// the memory that `metrics` already has.
void CopyMetrics(const std::map<uint32_t, std::shared_ptr<ProcessSet>>& sets,
                 const Transport& transport, double now, Metrics* metrics);

// Thread-safe.
std::string MetricsJson(const Metrics& metrics);

}  // namespace horoscale
