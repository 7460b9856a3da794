#include "core/error_reports.h"

#include <algorithm>
#include <cmath>

namespace horoscale {
namespace {

// Relative to the last reported error; a larger change justifies a few bytes.
constexpr double kSmallChange = 1.0 / 16;
constexpr double kMostError = 1e5;

}  // namespace

void ErrorReports::Note(uint32_t slot, const Encoding& encoding, double error) {
  if (!std::isfinite(error) || error < 0) return;
  const auto units = static_cast<uint32_t>(std::ceil(std::min(error, kMostError) * 1e4));
  const EncodingError now{slot, encoding, units};
  if (IsTold(now)) {
    changed_.erase(slot);
  } else {
    changed_[slot] = now;
  }
}

bool ErrorReports::IsTold(const EncodingError& now) const {
  const auto told = told_.find(now.slot);
  if (told == told_.end() || told->second.encoding != now.encoding) return false;
  const auto before = static_cast<double>(told->second.error);
  return std::abs(static_cast<double>(now.error) - before) <= kSmallChange * before;
}

void ErrorReports::Forget(uint32_t slot) {
  changed_.erase(slot);
  told_.erase(slot);
}

std::vector<EncodingError> ErrorReports::Take() {
  std::vector<EncodingError> errors;
  for (const auto& [slot, error] : changed_) {
    errors.push_back(error);
    told_[slot] = error;
  }
  changed_.clear();
  return errors;
}

}  // namespace horoscale
