// PublishedMetrics: metrics that the owner of the engine writes and other threads read.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "runtime/metrics.h"

namespace horoscale {

class PublishedMetrics {
 public:
  // The owner: the metrics to fill next. Reuses the memory of metrics that are no longer read,
  // because page faults in new memory take longer than the copy.
  std::shared_ptr<Metrics> Next();
  // The owner: makes these the metrics that are read.
  void Publish(std::shared_ptr<Metrics> metrics);

  // Any thread: the metrics published last; empty if there are none yet.
  std::string Json() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Metrics> last_;
  std::shared_ptr<Metrics> spare_;  // the previous ones; a thread may still read them
};

}  // namespace horoscale
