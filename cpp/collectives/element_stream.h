// Ranges of elements of several tensors, seen as one sequence in which each range begins at a
// multiple of kAdasumLanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "collectives/adasum_stages.h"

namespace horoscale {

class ElementStream {
 public:
  // A piece of a tensor's range: where it is in the tensor, and in the stream.
  struct Run {
    size_t tensor = 0;
    int64_t first = 0;  // element of the tensor
    int64_t count = 0;
    int64_t place = 0;  // in the stream
  };

  ElementStream() = default;
  explicit ElementStream(std::vector<ElementRange> ranges);

  // With the gaps.
  int64_t elements() const { return starts_.back(); }
  const ElementRange& range(size_t tensor) const { return ranges_[tensor]; }
  int64_t start(size_t tensor) const { return starts_[tensor]; }

  // Calls visit(run) for all that is at [first, first + count) of the stream. What is beyond its
  // end is left out.
  template <typename Visitor>
  void ForEachRun(int64_t first, int64_t count, Visitor visit) const {
    const int64_t end = std::min(first + count, elements());
    if (first >= end) return;
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), first);
    for (auto tensor = static_cast<size_t>(after - starts_.begin()) - 1;
         tensor < ranges_.size() && starts_[tensor] < end; ++tensor) {
      const int64_t begin = std::max(first, starts_[tensor]);
      const int64_t skip = begin - starts_[tensor];
      const int64_t length = std::min(end - begin, ranges_[tensor].count - skip);
      if (length > 0) visit(Run{tensor, ranges_[tensor].first + skip, length, begin});
    }
  }

 private:
  std::vector<ElementRange> ranges_;
  std::vector<int64_t> starts_{0};  // of each range, and the end of the last
};

}  // namespace horoscale
