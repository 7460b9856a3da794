// Frames of process sets that are not registered here yet. Registration is collective, but ranks
// execute it at different times, so that peers may be ahead by a few calls. What is kept for them
// is bounded in bytes: if a peer sends more, the set is an error as soon as it is registered here.
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
  // All of one set, in the order in which they came.
  struct Kept {
    std::vector<Frame> frames;
    std::optional<int> dropped_of;  // a rank whose frames were too much: some are missing
  };

  // Of all sets together, what frames take beside their bytes included.
  static constexpr size_t kMostBytes = 64 << 20;

  explicit EarlyFrames(size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  void Add(int from_rank, const FrameHeader& header, std::span<const std::byte> payload);

  // The set is registered now, as the next one of all: what came for others up to its incarnation
  // is forgotten, because there will be no such set.
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
