// The table of docs/tuning.md: what the tuner chooses for three models and twelve networks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tuning/training.h"

namespace horoscale::tuning {

struct Row {
  Setting setting;
  double untuned_seconds = 0;    // of a step, with the default limits, uncompressed
  double untuned_exposed = 0;    // the fraction of it that is exposed communication
  double adaptive_seconds = 0;   // with adaptive compression
  double tuned_seconds = 0;      // with adaptive compression and the chosen limits
  double predicted_seconds = 0;  // of the chosen limits; 0: not known
  double predicted_saving = 0;   // fraction that the predicted limits save; 0: none do
  double saved = 0;              // fraction that the chosen limits save, as the tuner measured it
  uint64_t steps = 0;            // until the tuner had ended
  Limits chosen;
  std::map<std::string, int> encodings;  // percent of the bytes, at least 1
};

Row MakeRow(const Setting& setting);

// For each model and network; with overlap across steps.
std::vector<Row> MakeRows(double most_error);

// As Markdown.
std::string Format(const std::vector<Row>& rows);

}  // namespace horoscale::tuning
