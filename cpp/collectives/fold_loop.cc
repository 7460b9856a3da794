#include "collectives/fold_loop.h"

#include <algorithm>
#include <utility>

#include "collectives/fold.h"

namespace horoscale {

FoldLoop::FoldLoop(Exchange& exchange, std::vector<uint32_t> participants, int64_t rounds,
                   DataType dtype)
    : RoundLoop(exchange, std::move(participants), rounds),
      element_bytes_(static_cast<int64_t>(SizeOf(dtype))) {
  chunks_.reserve(this->participants().size());
  sources_.reserve(this->participants().size());
}

bool FoldLoop::PeekAll(int64_t round, const std::vector<uint32_t>& members,
                       const std::byte* own_chunk) {
  chunks_.clear();
  for (uint32_t member : members) {
    chunks_.push_back(member == self() ? own_chunk : Peek(round, member));
    if (member != self() && chunks_.back() == nullptr) return false;
  }
  return true;
}

void FoldLoop::FoldRange(const Reduction& reduction, const SegmentMap& own, int64_t first,
                         int64_t bytes, int64_t offset, std::byte* dst) {
  sources_.resize(chunks_.size());
  const DataType result = reduction.result.value_or(reduction.dtype);
  own.ForEachRun(first, bytes, [&](const Segment& run, int64_t run_offset) {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      sources_[i] = chunks_[i] == nullptr
                        ? run.in
                        : chunks_[i] + BytesIn(reduction.dtype, offset + run_offset);
    }
    Fold(reduction, dst == nullptr ? run.out : dst + BytesIn(result, run_offset), sources_,
         run.bytes / element_bytes_);
  });
}

AloneFold::AloneFold(Exchange& exchange, const Reduction& reduction, std::vector<Segment> segments)
    : FoldLoop(exchange, {exchange.self()}, 0, reduction.dtype),
      reduction_(reduction),
      segments_(std::move(segments)) {
  PeekAll(0, participants());
}

bool AloneFold::LocalWork() {
  const int64_t bytes = std::min(chunk_bytes(), segments_.bytes() - folded_);
  FoldRange(reduction_, segments_, folded_, bytes, 0, nullptr);
  folded_ += bytes;
  return bytes > 0;
}

}  // namespace horoscale
