// Which members are late? Counts how often each was the last to report an operation, and for how
// long the first one had waited by then. Pure; at the coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

class Lateness {
 public:
  struct Member {
    uint64_t operations = 0;  // that it was the last to report
    double seconds = 0;       // from their first report to its own; concurrent ones count once
  };

  explicit Lateness(size_t size) : members_(size) {}

  // These members reported an operation together at `now`, after all others; the first one did so
  // at `since`. Nobody is late where all did at the same time.
  void OnLast(std::span<const uint32_t> last, double since, double now);

  // By member.
  const std::vector<Member>& members() const { return members_; }

 private:
  std::vector<Member> members_;
  double counted_until_ = 0;  // no second of the set's counts twice
};

}  // namespace horoscale
