#include "tuning/table.h"

#include <algorithm>
#include <cstdio>

namespace horoscale::tuning {
namespace {

constexpr int kSettle = 60;  // steps until pace and encodings have settled
constexpr int kMeasured = 9;
constexpr int kMostTuned = 2000;

struct Seconds {
  double step = 0;
  double exposed = 0;
};

Seconds Measure(Training& training) {
  std::vector<std::pair<double, double>> steps;
  for (int i = 0; i < kMeasured; ++i) {
    training.Step();
    steps.emplace_back(training.seconds(), training.exposed());
  }
  std::sort(steps.begin(), steps.end());
  return {steps[kMeasured / 2].first, steps[kMeasured / 2].second};
}

Seconds Settled(const Setting& setting) {
  Training training(setting);
  for (int i = 0; i < kSettle; ++i) training.Step();
  return Measure(training);
}

std::string Size(int64_t bytes) {
  const bool is_small = bytes < 1 << 20;
  return std::to_string(is_small ? bytes >> 10 : bytes >> 20) + (is_small ? " KiB" : " MiB");
}

template <typename... Numbers>
std::string Print(const char* format, Numbers... numbers) {
  char text[256];
  std::snprintf(text, sizeof text, format, numbers...);
  return text;
}

std::string Changes(const Limits& from, const Limits& to) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + value;
  };
  if (to.fusion_threshold_bytes != from.fusion_threshold_bytes) {
    add("fusion", Size(to.fusion_threshold_bytes));
  }
  if (to.partition_bytes != from.partition_bytes) add("partition", Size(to.partition_bytes));
  if (to.credit_bytes != from.credit_bytes) add("credit", Size(to.credit_bytes));
  if (to.pace_seconds != from.pace_seconds) {
    add("pace", Print("%.0f ms", to.pace_seconds * 1e3));
  }
  return text.empty() ? "defaults" : text;
}

std::string Encodings(const Row& row) {
  std::string text;
  for (const auto& [name, percent] : row.encodings) {
    if (name == "none" && row.encodings.size() > 1) continue;
    text += (text.empty() ? "" : ", ") + name;
    if (row.encodings.size() > 1) text += " " + std::to_string(percent) + " %";
  }
  return text;
}

// The last line with the chosen limits tells what they are predicted to take.
void ReadLog(const std::vector<TuningRecord>& log, Row& row) {
  std::vector<double> predicted;
  for (const TuningRecord& record : log) {
    if (record.what == "predicted") predicted.push_back(record.predicted_seconds);
    if (!record.is_last) continue;
    row.chosen = record.limits;
    row.saved = record.saved;
    row.steps = record.step;
  }
  if (predicted.size() == 2) row.predicted_saving = 1 - predicted[1] / predicted[0];
  for (const TuningRecord& record : log) {
    if (record.limits == row.chosen && record.predicted_seconds > 0) {
      row.predicted_seconds = record.predicted_seconds;
    }
  }
}

void CountEncodings(const Training& training, Row& row) {
  std::map<std::string, int64_t> bytes;
  for (size_t layer = 0; layer < row.setting.model.layers.size(); ++layer) {
    const std::vector<int64_t>& elements = row.setting.model.layers[layer].elements;
    for (size_t i = 0; i < elements.size(); ++i) {
      const std::string name = GradientName(layer, i);
      bytes[Name(training.encodings().at(name))] += 4 * elements[i];
    }
  }
  for (const auto& [name, count] : bytes) {
    const int percent = static_cast<int>(100 * count / row.setting.model.Bytes());
    if (percent > 0) row.encodings[name] = percent;
  }
}

std::string Why(const Row& row) {
  std::string text = Print("%.0f %% exposed", row.untuned_exposed * 100);
  if (row.encodings.size() == 1 && row.encodings.contains("none")) {
    text += row.untuned_exposed <= 0.05 ? ": hidden" : ", but encoding saves too little";
  }
  if (row.predicted_saving == 0) return text + "; no limits promise more";
  text += Print("; other limits promise %.0f %%", row.predicted_saving * 100);
  return text +
         (row.saved > 0 ? Print(" and save %.0f %%", row.saved * 100) : ", but save nothing");
}

}  // namespace

Row MakeRow(const Setting& setting) {
  Row row;
  row.setting = setting;
  Setting other = setting;
  other.searches = false;
  row.adaptive_seconds = Settled(other).step;
  other.most_error = 0;
  const Seconds untuned = Settled(other);
  row.untuned_seconds = untuned.step;
  row.untuned_exposed = untuned.exposed / untuned.step;
  Training training(setting);
  bool ended = false;
  for (int i = 0; i < kMostTuned && !ended; ++i) {
    training.Step();
    ended = std::any_of(training.log().begin(), training.log().end(),
                        [](const TuningRecord& record) { return record.is_last; });
  }
  ReadLog(training.log(), row);
  for (int i = 0; i < kSettle; ++i) training.Step();
  row.tuned_seconds = Measure(training).step;
  CountEncodings(training, row);
  return row;
}

std::vector<Row> MakeRows(double most_error) {
  std::vector<Row> rows;
  for (const Model& model : {Perceptron(), Convolutions(), Transformer()}) {
    for (const double megabits : {100, 200, 1000, 10'000}) {
      for (const double milliseconds : {0, 5, 20}) {
        rows.push_back(MakeRow({.model = model,
                                .megabits = megabits,
                                .latency_seconds = milliseconds / 1e3,
                                .most_error = most_error,
                                .searches = true}));
      }
    }
  }
  return rows;
}

std::string Format(const std::vector<Row>& rows) {
  std::string text =
      "| model | Mbit/s | latency | untuned | adaptive | tuned | predicted | limits | encodings | "
      "steps | why |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Row& row : rows) {
    text += Print("| %s | %.0f | %.0f | %.0f | %.0f | %.0f |", row.setting.model.name.c_str(),
                  row.setting.megabits, row.setting.latency_seconds * 1e3,
                  row.untuned_seconds * 1e3, row.adaptive_seconds * 1e3, row.tuned_seconds * 1e3);
    text += row.predicted_seconds > 0 ? Print(" %.0f |", row.predicted_seconds * 1e3) : " |";
    text += " " + Changes(row.setting.limits, row.chosen) + " | " + Encodings(row) + " | " +
            std::to_string(row.steps) + " | " + Why(row) + " |\n";
  }
  return text;
}

}  // namespace horoscale::tuning
