// Formats the counters of a rank as JSON, for metrics().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/process_set.h"
#include "runtime/step_times.h"
#include "transport/transport.h"

namespace horoscale {

std::string MetricsOf(const std::map<uint32_t, std::shared_ptr<ProcessSet>>& sets,
                      const Transport& transport, const StepTotals& steps, double waiting_seconds,
                      double now);

}  // namespace horoscale
