// PublishedMetrics: one thread writes, others read, and memory is used again.
#include "runtime/published_metrics.h"

#include <gmock/gmock.h>

#include <thread>

namespace horoscale {
namespace {

std::shared_ptr<Metrics> Published(PublishedMetrics& published, uint64_t steps) {
  std::shared_ptr<Metrics> metrics = published.Next();
  metrics->steps.steps = steps;
  published.Publish(metrics);
  return metrics;
}

TEST(PublishedMetrics, TheLastOnesAreRead) {
  PublishedMetrics published;
  EXPECT_EQ(published.Json(), "");
  for (uint64_t steps = 1; steps <= 3; ++steps) {
    Published(published, steps);
    EXPECT_THAT(published.Json(), testing::HasSubstr("\"count\": " + std::to_string(steps)));
  }
}

TEST(PublishedMetrics, MemoryIsUsedAgainUnlessItIsStillRead) {
  PublishedMetrics published;
  const Metrics* const first = Published(published, 1).get();
  const std::shared_ptr<Metrics> read = Published(published, 2);
  EXPECT_NE(read.get(), first);
  EXPECT_EQ(Published(published, 3).get(), first);
  EXPECT_NE(Published(published, 4).get(), read.get());
  EXPECT_EQ(read->steps.steps, 2u);
}

TEST(PublishedMetrics, AnyThreadReadsWhileTheOwnerWrites) {
  PublishedMetrics published;
  Published(published, 1);
  std::thread reader([&published] {
    for (int i = 0; i < 200; ++i) EXPECT_NE(published.Json(), "");
  });
  for (uint64_t steps = 2; steps < 200; ++steps) Published(published, steps);
  reader.join();
}

}  // namespace
}  // namespace horoscale
