#include "core/adaptive_encoding.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace horoscale {
namespace {

// A tensor is compressed more only if that reduces its time to this fraction of the current time,
// and of the time without encoding. Where encoding costs as much as the network, neither holds.
constexpr double kWorthwhile = 0.7;
constexpr double kWorthwhileAtAll = 0.6;

// Used until errors are measured. For integers: the maximum error of a block, rounded to the
// nearest of 255 levels, if one element is large and the others are 0. For signs and top-k: the
// error with residuals of independent normal values, with some margin.
constexpr std::array<double, kNumEncodingLevels> kExpected = {0, 0.002, 0.02, 0.2, 1.5, 6};

}  // namespace

LevelErrors::LevelErrors() : errors(kExpected) {}

void LevelErrors::Measure(size_t level, double error) {
  constexpr size_t kInt8Level = 2;
  constexpr size_t kInt4Level = 3;
  errors[level] = error;
  if (level == kInt8Level) {
    int8_error_ = error;
    errors[kInt4Level] = int4_per_int8_ * error;
  }
  if (level == kInt4Level && int8_error_ > 0) int4_per_int8_ = error / int8_error_;
}

double ShareSeconds(const AdaptiveTensor& tensor, size_t level, const NetworkState& network) {
  if (network.bytes_per_second <= 0) return 0;
  const auto elements = static_cast<double>(tensor.elements);
  const Encoding& encoding = kEncodingLevels[level];
  double seconds = elements * encoding.BytesPerElement(tensor.dtype) / network.bytes_per_second;
  if (level > 0 && network.coding_per_second > 0) {
    seconds += elements * static_cast<double>(SizeOf(tensor.dtype)) / network.coding_per_second;
  }
  return seconds;
}

double TransferSeconds(const AdaptiveTensor& tensor, size_t level, const NetworkState& network) {
  return network.latency_seconds + ShareSeconds(tensor, level, network);
}

std::vector<size_t> ChooseLevels(std::span<const AdaptiveTensor> tensors,
                                 const NetworkState& network, double seconds) {
  std::vector<size_t> levels(tensors.size(), 0);
  double total = 0;
  for (const AdaptiveTensor& tensor : tensors) total += ShareSeconds(tensor, 0, network);
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tensors[a].priority > tensors[b].priority; });
  for (size_t level = 1; level < kNumEncodingLevels; ++level) {
    for (const size_t i : order) {
      if (total <= seconds) return levels;
      const AdaptiveTensor& tensor = tensors[i];
      const double now = TransferSeconds(tensor, levels[i], network);
      const double then = TransferSeconds(tensor, level, network);
      const double most =
          std::min(kWorthwhile * now, kWorthwhileAtAll * TransferSeconds(tensor, 0, network));
      if (tensor.errors.errors[level] > tensor.most_error || then > most) continue;
      total += then - now;
      levels[i] = level;
    }
  }
  return levels;
}

}  // namespace horoscale
