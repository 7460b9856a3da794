#include "core/step_profile.h"

#include <algorithm>
#include <utility>

namespace horoscale {
namespace {

constexpr size_t kSteps = 5;
// Programs may use a new name for each call.
constexpr size_t kMostOperations = 16'384;

}  // namespace

void StepProfile::OnReady(std::string_view name, StepOperation operation, double now) {
  if (current_.size() >= kMostOperations) {
    current_.clear();
    positions_.clear();
  }
  std::string key(name);
  const auto found = key.empty() ? positions_.end() : positions_.find(key);
  if (found != positions_.end()) EndStep(found->second, now);
  if (!key.empty()) positions_[key] = current_.size();
  current_.push_back({std::move(key), std::move(operation), now, blocked_});
}

// What is before the first operation is not repeated.
void StepProfile::EndStep(size_t first, double now) {
  const double began = current_[first].at;
  const double blocked = current_[first].blocked_before;
  ProfiledStep step;
  step.seconds = now - began;
  step.computed_seconds = std::max(step.seconds - (blocked_ - blocked), 0.0);
  for (size_t i = first; i < current_.size(); ++i) {
    StepOperation& operation = step.operations.emplace_back(std::move(current_[i].operation));
    operation.ready =
        std::max(current_[i].at - began - (current_[i].blocked_before - blocked), 0.0);
  }
  if (steps_.size() == kSteps) steps_.pop_front();
  steps_.push_back(std::move(step));
  current_.clear();
  positions_.clear();
}

std::optional<ProfiledStep> StepProfile::Usual() const {
  if (steps_.empty()) return std::nullopt;
  std::vector<const ProfiledStep*> order;
  for (const ProfiledStep& step : steps_) order.push_back(&step);
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2);
  std::nth_element(
      order.begin(), middle, order.end(),
      [](const ProfiledStep* a, const ProfiledStep* b) { return a->seconds < b->seconds; });
  return **middle;
}

}  // namespace horoscale
