// Allreduce in four forms, which give the same bits:
//
//   alone     one participant: its own values go through the reduction.
//   gathered  small: everybody publishes everything, and folds everything itself. One round.
//   sliced    large: each chunk is split into a slice per participant. Contributions are published,
//             the owner of a slice folds it and publishes the result. Two rounds per chunk.
//   direct    large, in place, in memory that all can reach: see direct_allreduce.h.
#include <algorithm>
#include <utility>

#include "collectives/direct_allreduce.h"
#include "collectives/fold_loop.h"

namespace horoscale {
namespace {

// Up to this many bytes to fold (contribution times participants) one round of more work beats two
// rounds of less: measured with 2 and 4 members (benchmarks/cpp/exchange_bench.cc).
constexpr int64_t kGatheredBytes = 128 * 1024;

class GatheredAllreduce : public FoldLoop {
 public:
  GatheredAllreduce(Exchange& exchange, std::vector<uint32_t> participants, AllreduceArgs args)
      : FoldLoop(exchange, std::move(participants), 1, args.reduction),
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
    if (!PeekAll(round)) return Progress::kIdle;
    FoldRange(segments_, 0, segments_.bytes(), 0, nullptr);
    return Progress::kDone;
  }

  const SegmentMap segments_;
};

// The order of the rounds for chunks 0, 1, 2, …: the contribution to the next chunk is published
// before the results of a chunk are, so that nobody waits for the slowest fold.
//
//     round         0   1   2   3   4   5   6 …   2n - 2   2n - 1
//     contribution  0   1       2       3
//     results               0       1       2 …   n - 2    n - 1
struct Schedule {
  int64_t chunks;

  int64_t Rounds() const { return 2 * chunks; }
  bool IsContribution(int64_t round) const {
    return round == 0 || (round % 2 == 1 && round != Rounds() - 1);
  }
  int64_t ChunkOf(int64_t round) const {
    if (round == Rounds() - 1) return chunks - 1;
    return IsContribution(round) ? (round + 1) / 2 : round / 2 - 1;
  }
  int64_t ContributionRound(int64_t chunk) const { return chunk == 0 ? 0 : 2 * chunk - 1; }
};

Schedule ScheduleOf(const Exchange& exchange, int64_t bytes) {
  return {DivideUp(bytes, static_cast<int64_t>(exchange.chunk_bytes()))};
}

int64_t BytesOf(const AllreduceArgs& args) {
  int64_t bytes = 0;
  for (const Segment& segment : args.segments) bytes += segment.bytes;
  return bytes;
}

class SlicedAllreduce : public FoldLoop {
 public:
  SlicedAllreduce(Exchange& exchange, std::vector<uint32_t> participants, AllreduceArgs args,
                  Schedule schedule)
      : FoldLoop(exchange, std::move(participants), schedule.Rounds(), args.reduction),
        segments_(std::move(args.segments)),
        schedule_(schedule),
        position_(size()),
        extents_(size()) {
    for (uint32_t i = 0; i < this->participants().size(); ++i) {
      position_[this->participants()[i]] = i;
    }
  }

 private:
  struct Range {
    int64_t first;
    int64_t bytes;
  };

  Range Chunk(int64_t chunk) const {
    const int64_t first = chunk * chunk_bytes();
    return {first, std::min(chunk_bytes(), segments_.bytes() - first)};
  }

  // What the member owns of a chunk, relative to it: whole cache lines, as evenly as that goes.
  Range Slice(Range chunk, uint32_t member) const {
    const auto owners = static_cast<uint32_t>(participants().size());
    const RowRange lines = RowsOf(DivideUp(chunk.bytes, kLineBytes), owners, position_[member]);
    const int64_t first = std::min(lines.first * kLineBytes, chunk.bytes);
    return {first, std::min(lines.count * kLineBytes, chunk.bytes - first)};
  }

  bool Send(int64_t round) override {
    const int64_t chunk = schedule_.ChunkOf(round);
    return schedule_.IsContribution(round) ? SendContribution(round, Chunk(chunk))
                                           : SendResult(round, chunk);
  }

  bool SendContribution(int64_t round, Range chunk) {
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    for (uint32_t owner : participants()) {
      if (owner == self()) continue;  // folded where it is
      const Range slice = Slice(chunk, owner);
      segments_.Gather(bank + slice.first, chunk.first + slice.first, slice.bytes);
      extents_[owner] = {static_cast<size_t>(slice.first), static_cast<size_t>(slice.bytes)};
    }
    PublishExtents(round, chunk.bytes, extents_);
    return true;
  }

  bool SendResult(int64_t round, int64_t index) {
    const Range chunk = Chunk(index);
    const Range slice = Slice(chunk, self());
    if (slice.bytes > 0) {
      std::byte* bank = Reserve(round);
      if (bank == nullptr || !PeekAll(schedule_.ContributionRound(index))) return false;
      FoldRange(segments_, chunk.first + slice.first, slice.bytes, slice.first, bank);
      PublishToPeers(round, slice.bytes);
      segments_.Scatter(bank, chunk.first + slice.first, slice.bytes);
    }
    ++folded_chunks_;
    return true;
  }

  Progress Receive(int64_t round) override {
    const int64_t index = schedule_.ChunkOf(round);
    if (schedule_.IsContribution(round)) {
      return index < folded_chunks_ ? Progress::kDone : Progress::kIdle;
    }
    const Range chunk = Chunk(index);
    return ReceiveFromEach(
        round, [&](uint32_t owner) { return Slice(chunk, owner).bytes > 0; },
        [&](uint32_t owner, const std::byte* result) {
          const Range slice = Slice(chunk, owner);
          segments_.Scatter(result, chunk.first + slice.first, slice.bytes);
        });
  }

  const SegmentMap segments_;
  const Schedule schedule_;
  int64_t folded_chunks_ = 0;
  std::vector<uint32_t> position_;  // of a member among the participants
  std::vector<Exchange::Extent> extents_;
};

std::unique_ptr<Collective> MakeSliced(Exchange& exchange, AllreduceArgs args) {
  std::vector<uint32_t> participants = Participants(exchange, args.absent);
  const Schedule schedule = ScheduleOf(exchange, BytesOf(args));
  return std::make_unique<SlicedAllreduce>(exchange, std::move(participants), std::move(args),
                                           schedule);
}

}  // namespace

std::unique_ptr<Collective> MakeAllreduce(Exchange& exchange, AllreduceArgs args) {
  std::vector<uint32_t> participants = Participants(exchange, args.absent);
  const auto count = static_cast<int64_t>(participants.size());
  const auto chunk = static_cast<int64_t>(exchange.chunk_bytes());
  const int64_t bytes = BytesOf(args);

  const bool gathered = bytes <= std::min(chunk, kGatheredBytes / count);
  if (std::find(args.absent.begin(), args.absent.end(), exchange.self()) != args.absent.end()) {
    const int64_t rounds = count == 1 || bytes == 0 ? 0
                           : gathered               ? 1
                                                    : ScheduleOf(exchange, bytes).Rounds();
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
