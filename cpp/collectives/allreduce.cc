// Allreduce of participants on one host, in four forms, which give the same bits:
//
//   alone     one participant, which applies the reduction to its own values.
//   gathered  small: each participant publishes its whole tensor and folds all of them. One round.
//   sliced    large: each chunk is split into a slice per participant. Contributions are published,
//             the owner of a slice folds it and publishes the result. Two rounds per chunk.
//   direct    large, in place, in memory that all can access: see direct_allreduce.h.
//
// Participants on several hosts: see hosts_allreduce.h.
#include <algorithm>
#include <utility>

#include "collectives/adasum_allreduce.h"
#include "collectives/direct_allreduce.h"
#include "collectives/encoded_allreduce.h"
#include "collectives/fold_loop.h"
#include "collectives/hosts_allreduce.h"
#include "collectives/pipeline.h"

namespace horoscale {
namespace {

// Up to this many folded bytes (contribution times participants), one round with more work is
// faster than two rounds with less: measured with 2 and 4 members
// (benchmarks/cpp/exchange_bench.cc).
constexpr int64_t kGatheredBytes = 128 * 1024;

class GatheredAllreduce : public FoldLoop {
 public:
  GatheredAllreduce(Exchange& exchange, std::vector<uint32_t> participants, AllreduceArgs args)
      : FoldLoop(exchange, std::move(participants), 1, args.reduction.dtype),
        reduction_(args.reduction),
        segments_(std::move(args.segments)) {}

 private:
  bool Send(int64_t round) override {
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    segments_.Gather(bank, 0, segments_.bytes());
    PublishToPeers(round, segments_.bytes());
    return true;
  }

  Progress Receive(int64_t round) override {
    if (!PeekAll(round, participants())) return Progress::kIdle;
    FoldRange(reduction_, segments_, 0, segments_.bytes(), 0, nullptr);
    return Progress::kDone;
  }

  const Reduction reduction_;
  const SegmentMap segments_;
};

class SlicedAllreduce : public FoldLoop {
 public:
  static Pipeline PipelineOf(const Exchange& exchange, int64_t bytes) {
    const int64_t chunks = DivideUp(bytes, static_cast<int64_t>(exchange.chunk_bytes()));
    return {kNumPhases, chunks, exchange.banks()};
  }

  SlicedAllreduce(Exchange& exchange, std::vector<uint32_t> participants, AllreduceArgs args,
                  Pipeline pipeline)
      : FoldLoop(exchange, std::move(participants), pipeline.rounds(), args.reduction.dtype),
        reduction_(args.reduction),
        segments_(std::move(args.segments)),
        pipeline_(std::move(pipeline)),
        position_(size()),
        extents_(size()) {
    for (uint32_t i = 0; i < this->participants().size(); ++i) {
      position_[this->participants()[i]] = i;
    }
  }

 private:
  enum Phase : int64_t { kContribution, kResult, kNumPhases };  // of a chunk

  ByteRange Chunk(int64_t chunk) const {
    const int64_t first = chunk * chunk_bytes();
    return {first, std::min(chunk_bytes(), segments_.bytes() - first)};
  }

  // The range of a chunk that the member owns, relative to the chunk.
  ByteRange Slice(ByteRange chunk, uint32_t member) const {
    return SliceOf(chunk.bytes, static_cast<uint32_t>(participants().size()), position_[member]);
  }

  bool Send(int64_t round) override {
    const Pipeline::Place place = pipeline_.At(round);
    return place.phase == kContribution ? SendContribution(round, Chunk(place.chunk))
                                        : SendResult(round, place.chunk);
  }

  bool SendContribution(int64_t round, ByteRange chunk) {
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    for (uint32_t owner : participants()) {
      if (owner == self()) continue;  // folded in place
      const ByteRange slice = Slice(chunk, owner);
      segments_.Gather(bank + slice.first, chunk.first + slice.first, slice.bytes);
      extents_[owner] = {static_cast<size_t>(slice.first), static_cast<size_t>(slice.bytes)};
    }
    PublishExtents(round, chunk.bytes, extents_);
    return true;
  }

  bool SendResult(int64_t round, int64_t index) {
    const ByteRange chunk = Chunk(index);
    const ByteRange slice = Slice(chunk, self());
    if (slice.bytes > 0) {
      std::byte* bank = Reserve(round);
      const int64_t contribution = pipeline_.RoundOf(kContribution, index);
      if (bank == nullptr || !PeekAll(contribution, participants())) return false;
      FoldRange(reduction_, segments_, chunk.first + slice.first, slice.bytes, slice.first, bank);
      PublishToPeers(round, slice.bytes);
      segments_.Scatter(bank, chunk.first + slice.first, slice.bytes);
    }
    ++folded_chunks_;
    return true;
  }

  Progress Receive(int64_t round) override {
    const auto [phase, index] = pipeline_.At(round);
    if (phase == kContribution) {
      return index < folded_chunks_ ? Progress::kDone : Progress::kIdle;
    }
    const ByteRange chunk = Chunk(index);
    return ReceiveFromEach(
        round, [&](uint32_t owner) { return Slice(chunk, owner).bytes > 0; },
        [&](uint32_t owner, const std::byte* result) {
          const ByteRange slice = Slice(chunk, owner);
          segments_.Scatter(result, chunk.first + slice.first, slice.bytes);
        });
  }

  const Reduction reduction_;
  const SegmentMap segments_;
  const Pipeline pipeline_;
  int64_t folded_chunks_ = 0;
  std::vector<uint32_t> position_;  // of a member among the participants
  std::vector<Exchange::Extent> extents_;
};

std::unique_ptr<Collective> MakeSliced(Exchange& exchange, AllreduceArgs args) {
  std::vector<uint32_t> participants = Participants(exchange, args.absent);
  Pipeline pipeline = SlicedAllreduce::PipelineOf(exchange, BytesOf(args.segments));
  return std::make_unique<SlicedAllreduce>(exchange, std::move(participants), std::move(args),
                                           std::move(pipeline));
}

}  // namespace

std::unique_ptr<Collective> MakeAllreduce(Exchange& exchange, AllreduceArgs args) {
  if (args.reduction.op == ReduceOp::kAdasum) {
    return MakeAdasumAllreduce(exchange, std::move(args));
  }
  std::vector<uint32_t> participants = Participants(exchange, args.absent);
  const auto count = static_cast<int64_t>(participants.size());
  const auto chunk = static_cast<int64_t>(exchange.chunk_bytes());
  const int64_t bytes = BytesOf(args.segments);

  if (!exchange.hosts().empty() && bytes > 0) {
    HostGroups hosts(exchange, participants);
    if (hosts.count() > 1 && MayEncode(args)) {
      return MakeEncodedAllreduce(exchange, std::move(hosts), std::move(args));
    }
    if (hosts.count() > 1) return MakeHostsAllreduce(exchange, std::move(hosts), std::move(args));
  }
  const bool gathered = bytes <= std::min(chunk, kGatheredBytes / count);
  if (std::find(args.absent.begin(), args.absent.end(), exchange.self()) != args.absent.end()) {
    const int64_t rounds = count == 1 || bytes == 0 ? 0
                           : gathered ? 1
                                      : SlicedAllreduce::PipelineOf(exchange, bytes).rounds();
    return std::make_unique<Bystander>(exchange, rounds);
  }
  if (count == 1 || bytes == 0) {
    return std::make_unique<AloneFold>(exchange, args.reduction, std::move(args.segments));
  }
  if (gathered) {
    return std::make_unique<GatheredAllreduce>(exchange, std::move(participants), std::move(args));
  }
  if (MayBeDirect(exchange, args, bytes)) {
    return MakeDirectAllreduce(exchange, std::move(args), MakeSliced);
  }
  return MakeSliced(exchange, std::move(args));
}

}  // namespace horoscale
