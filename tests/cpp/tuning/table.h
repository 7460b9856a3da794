// The table of docs/tuning.md: what the tuner chooses for three models and twelve networks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tuning/training.h"

namespace horoscale::tuning {

struct Row {
  Setting setting;
  double untuned_seconds = 0;   // of a step, with the default limits, uncompressed
  double adaptive_seconds = 0;  // with adaptive compression
  double tuned_seconds = 0;     // with adaptive compression and tuned limits
  double exposed_seconds = 0;   // of the last
  double predicted_seconds = 0;
  double uncompressed_exposed = 0;  // fraction of a step of the first
  uint64_t steps = 0;               // until the tuner had ended
  Limits predicted;
  Limits chosen;
  std::map<std::string, int> encodings;  // bytes of gradients, in percent
  std::vector<TuningRecord> log;
};

Row MakeRow(const Setting& setting);

// For each model and network; with overlap across steps.
std::vector<Row> MakeRows(double most_error);

// As Markdown.
std::string Format(const std::vector<Row>& rows);

}  // namespace horoscale::tuning
