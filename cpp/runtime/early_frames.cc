#include "runtime/early_frames.h"

#include <iterator>
#include <utility>

namespace horoscale {
namespace {

// Maximum number of incarnations with queued frames; each needs a few bytes even if its frames are
// dropped.
constexpr size_t kMostIncarnations = 4096;

}  // namespace

void EarlyFrames::Add(int from_rank, const FrameHeader& header,
                      std::span<const std::byte> payload) {
  const uint32_t incarnation = header.channel.incarnation;
  if (!waiting_.contains(incarnation) && waiting_.size() >= kMostIncarnations) {
    // The furthest ones are the least likely to be used.
    const auto last = std::prev(waiting_.end());
    if (last->first < incarnation) return;
    bytes_ -= last->second.bytes;
    waiting_.erase(last);
  }
  ByIncarnation& waiting = waiting_[incarnation];
  const size_t bytes = BytesOf(payload);
  if (waiting.dropped_of) return;
  if (bytes > most_bytes_ - bytes_) {
    waiting.dropped_of = from_rank;
    return;
  }
  waiting.frames.push_back({from_rank, header, {payload.begin(), payload.end()}});
  waiting.bytes += bytes;
  bytes_ += bytes;
}

EarlyFrames::Kept EarlyFrames::Take(ChannelId channel) {
  Kept kept;
  while (!waiting_.empty() && waiting_.begin()->first <= channel.incarnation) {
    ByIncarnation& waiting = waiting_.begin()->second;
    bytes_ -= waiting.bytes;
    if (waiting_.begin()->first == channel.incarnation) {
      kept.dropped_of = waiting.dropped_of;
      for (Frame& frame : waiting.frames) {
        if (frame.header.channel == channel) kept.frames.push_back(std::move(frame));
      }
    }
    waiting_.erase(waiting_.begin());
  }
  return kept;
}

}  // namespace horoscale
