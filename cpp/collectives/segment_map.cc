#include "collectives/segment_map.h"

#include <cstring>
#include <utility>

namespace horoscale {

int64_t BytesOf(std::span<const Segment> segments) {
  int64_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.bytes;
  return bytes;
}

SegmentMap::SegmentMap(std::vector<Segment> segments)
    : segments_(std::move(segments)), starts_(segments_.size() + 1) {
  for (size_t i = 0; i < segments_.size(); ++i) starts_[i + 1] = starts_[i] + segments_[i].bytes;
}

void SegmentMap::Gather(std::byte* dst, int64_t first, int64_t bytes) const {
  ForEachRun(first, bytes, [dst](const Segment& run, int64_t offset) {
    std::memcpy(dst + offset, run.in, static_cast<size_t>(run.bytes));
  });
}

void SegmentMap::Scatter(const std::byte* src, int64_t first, int64_t bytes) const {
  ForEachRun(first, bytes, [src](const Segment& run, int64_t offset) {
    std::memcpy(run.out, src + offset, static_cast<size_t>(run.bytes));
  });
}

const std::byte* SegmentMap::InOnePiece(int64_t first, int64_t bytes) const {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool is_one = true;
  ForEachRun(first, bytes, [&](const Segment& run, int64_t) {
    if (begin == nullptr) begin = end = run.in;
    is_one = is_one && run.in == end;
    end = run.in + run.bytes;
  });
  return is_one ? begin : nullptr;
}

void SegmentMap::CopyThrough(int64_t first, int64_t bytes) const {
  ForEachRun(first, bytes, [](const Segment& run, int64_t) {
    if (run.out != run.in) std::memcpy(run.out, run.in, static_cast<size_t>(run.bytes));
  });
}

}  // namespace horoscale
