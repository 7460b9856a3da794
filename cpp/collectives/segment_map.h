// Several runs of memory seen as one sequence of bytes: what makes a fused operation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/collective.h"

namespace horoscale {

// Of all of them.
int64_t BytesOf(std::span<const Segment> segments);

class SegmentMap {
 public:
  SegmentMap() = default;
  explicit SegmentMap(std::vector<Segment> segments);

  int64_t bytes() const { return starts_.back(); }

  // Between [first, first + bytes) of the sequence and contiguous memory.
  void Gather(std::byte* dst, int64_t first, int64_t bytes) const;         // from `in`
  void Scatter(const std::byte* src, int64_t first, int64_t bytes) const;  // to `out`
  // Where `in` of [first, first + bytes) is; null if that is no single piece of memory.
  const std::byte* InOnePiece(int64_t first, int64_t bytes) const;
  // From `in` to `out`, where these differ.
  void CopyThrough(int64_t first, int64_t bytes) const;

  // Calls visit(run, offset) for each contiguous piece of [first, first + bytes): `run` is the part
  // of a segment, `offset` its distance from `first`.
  template <typename Visitor>
  void ForEachRun(int64_t first, int64_t bytes, Visitor visit) const {
    if (bytes == 0) return;
    // The last segment that starts at or before `first`; empty ones are passed over.
    auto next = std::upper_bound(starts_.begin(), starts_.end(), first);
    for (int64_t done = 0; done < bytes; ++next) {
      const Segment& segment = segments_[static_cast<size_t>(next - starts_.begin()) - 1];
      const int64_t skip = first + done - *(next - 1);
      const int64_t length = std::min(bytes - done, *next - (first + done));
      if (length == 0) continue;
      const Segment run = {segment.in == nullptr ? nullptr : segment.in + skip,
                           segment.out == nullptr ? nullptr : segment.out + skip, length};
      visit(run, done);
      done += length;
    }
  }

 private:
  std::vector<Segment> segments_;
  std::vector<int64_t> starts_{0};  // of each segment, and the end of the last
};

}  // namespace horoscale
