#include "collectives/fold_loop.h"

#include <algorithm>
#include <utility>

#include "collectives/fold.h"

namespace horoscale {

FoldLoop::FoldLoop(Exchange& exchange, std::vector<uint32_t> participants, int64_t rounds,
                   const Reduction& reduction)
    : RoundLoop(exchange, std::move(participants), rounds),
      reduction_(reduction),
      element_bytes_(static_cast<int64_t>(SizeOf(reduction.dtype))),
      chunks_(this->participants().size()),
      sources_(this->participants().size()) {}

bool FoldLoop::PeekAll(int64_t round) {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const uint32_t member = participants()[i];
    if (member == self()) continue;
    chunks_[i] = Peek(round, member);
    if (chunks_[i] == nullptr) return false;
  }
  return true;
}

void FoldLoop::FoldRange(const SegmentMap& own, int64_t first, int64_t bytes, int64_t offset,
                         std::byte* dst) {
  own.ForEachRun(first, bytes, [&](const Segment& run, int64_t run_offset) {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      sources_[i] = chunks_[i] == nullptr ? run.in : chunks_[i] + offset + run_offset;
    }
    Fold(reduction_, dst == nullptr ? run.out : dst + run_offset, sources_,
         run.bytes / element_bytes_);
  });
}

AloneFold::AloneFold(Exchange& exchange, const Reduction& reduction, std::vector<Segment> segments)
    : FoldLoop(exchange, {exchange.self()}, 0, reduction), segments_(std::move(segments)) {}

bool AloneFold::LocalWork() {
  const int64_t bytes = std::min(chunk_bytes(), segments_.bytes() - folded_);
  FoldRange(segments_, folded_, bytes, 0, nullptr);
  folded_ += bytes;
  return bytes > 0;
}

}  // namespace horoscale
