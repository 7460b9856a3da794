// A round loop that folds what the participants sent: the base of allreduce and reduce-scatter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/round_loop.h"
#include "collectives/segment_map.h"

namespace horoscale {

class FoldLoop : public RoundLoop {
 protected:
  // `dtype`: of the callers' tensors.
  FoldLoop(Exchange& exchange, std::vector<uint32_t> participants, int64_t rounds, DataType dtype);

  // Looks for the chunks of these participants; false until all are there. For the member itself,
  // if it is among them, `own_chunk` is taken, or its input where that is null.
  bool PeekAll(int64_t round, const std::vector<uint32_t>& members,
               const std::byte* own_chunk = nullptr);

  // Folds what PeekAll() found, in that order: of each chunk the `bytes` from `offset` on, and of
  // `own` [first, first + bytes) where it stands for a chunk. The result goes to dst, or to the
  // `out` of that range of `own` if dst is null. Bytes are those of the callers' type, also where
  // chunks and result are of another.
  void FoldRange(const Reduction& reduction, const SegmentMap& own, int64_t first, int64_t bytes,
                 int64_t offset, std::byte* dst);

  // What as many elements take in another type.
  int64_t BytesIn(DataType type, int64_t bytes) const {
    return bytes / element_bytes_ * static_cast<int64_t>(SizeOf(type));
  }

 private:
  const int64_t element_bytes_;
  std::vector<const std::byte*> chunks_;  // null for the member's input
  std::vector<const std::byte*> sources_;
};

// The reduction of a single participant: its own values, scaled.
class AloneFold : public FoldLoop {
 public:
  AloneFold(Exchange& exchange, const Reduction& reduction, std::vector<Segment> segments);

 private:
  bool Send(int64_t) override { return true; }
  Progress Receive(int64_t) override { return Progress::kDone; }
  bool LocalWork() override;

  const Reduction reduction_;
  const SegmentMap segments_;
  int64_t folded_ = 0;
};

}  // namespace horoscale
