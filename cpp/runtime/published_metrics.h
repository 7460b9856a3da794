// PublishedMetrics: metrics that the owner of the engine writes and other threads read.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "runtime/metrics.h"

namespace horoscale {

class PublishedMetrics {
 public:
  // The owner: what to write next, with the memory of metrics that nobody reads any more. New
  // memory, whose pages the kernel would have to provide, takes longer to write than to copy.
  std::shared_ptr<Metrics> Next();
  // The owner: from now on, these are read.
  void Publish(std::shared_ptr<Metrics> metrics);

  // Any thread: the last ones; empty if there are none yet.
  std::string Json() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Metrics> last_;
  std::shared_ptr<Metrics> spare_;  // those before; a thread may still read them
};

}  // namespace horoscale
