// Starts ranks concurrently as threads, because each waits for the others.
#pragma once

#include <cstddef>
#include <optional>
#include <thread>
#include <vector>

#include "base/status.h"

namespace horoscale {

// Calls `start` with 0 to count - 1, which returns a Result. The results are kept until all are
// done. Returns the statuses by number.
template <typename Start>
std::vector<Status> StartTogether(size_t count, const Start& start) {
  std::vector<std::optional<decltype(start(size_t{0}))>> made(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&, i] { made[i].emplace(start(i)); });
  for (std::thread& thread : threads) thread.join();
  std::vector<Status> statuses;
  for (const auto& result : made) statuses.push_back(result->status());
  return statuses;
}

}  // namespace horoscale
