// EarlyFrames: frames of process sets that are not registered on this rank yet. Registration is
// collective, but ranks execute it at different times, so peers may be ahead by a few calls. The
// size of queued frames is limited: if a peer sends more, the set fails when it is registered here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "transport/transport.h"

namespace horoscale {

class EarlyFrames {
 public:
  struct Frame {
    int from_rank;
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  // All frames of one set, in order of arrival.
  struct Kept {
    std::vector<Frame> frames;
    std::optional<int> dropped_of;  // a rank some of whose frames were dropped because of the limit
  };

  // Total for all sets, including the overhead of frames.
  static constexpr size_t kMostBytes = 64 << 20;

  explicit EarlyFrames(size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  void Add(int from_rank, const FrameHeader& header, std::span<const std::byte> payload);

  // Returns the frames of a set that is registered now. Frames for other sets up to its incarnation
  // are discarded, because there will be no such sets.
  Kept Take(ChannelId channel);

  size_t bytes() const { return bytes_; }

 private:
  struct ByIncarnation {
    std::vector<Frame> frames;
    std::optional<int> dropped_of;
    size_t bytes = 0;
  };
  static size_t BytesOf(std::span<const std::byte> payload) {
    return sizeof(Frame) + payload.size();
  }

  const size_t most_bytes_;
  size_t bytes_ = 0;
  std::map<uint32_t, ByIncarnation> waiting_;
};

}  // namespace horoscale
