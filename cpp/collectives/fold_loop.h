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
  FoldLoop(Exchange& exchange, std::vector<uint32_t> participants, int64_t rounds,
           const Reduction& reduction);

  // Looks for the chunks of all peers; false until all are there.
  bool PeekAll(int64_t round);

  // Folds [first, first + bytes) of `own` with the same bytes of the peers, which begin at `offset`
  // of the chunks that PeekAll() found. The result goes to dst, or to own's `out` if dst is null.
  void FoldRange(const SegmentMap& own, int64_t first, int64_t bytes, int64_t offset,
                 std::byte* dst);

 private:
  const Reduction reduction_;
  const int64_t element_bytes_;
  std::vector<const std::byte*> chunks_;  // by position among the participants; null for self
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

  const SegmentMap segments_;
  int64_t folded_ = 0;
};

}  // namespace horoscale
