#include "runtime/published_metrics.h"

#include <utility>

namespace horoscale {

std::shared_ptr<Metrics> PublishedMetrics::Next() {
  std::lock_guard lock(mutex_);
  if (spare_.use_count() == 1) return std::move(spare_);
  return std::make_shared<Metrics>();
}

void PublishedMetrics::Publish(std::shared_ptr<Metrics> metrics) {
  std::lock_guard lock(mutex_);
  spare_ = std::exchange(last_, std::move(metrics));
}

std::string PublishedMetrics::Json() const {
  std::unique_lock lock(mutex_);
  std::shared_ptr<const Metrics> metrics = last_;
  lock.unlock();
  if (metrics == nullptr) return "";
  std::string json = MetricsJson(*metrics);
  // Under the lock, so that the owner sees that the reading is over.
  lock.lock();
  metrics.reset();
  return json;
}

}  // namespace horoscale
