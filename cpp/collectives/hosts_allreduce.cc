// The participants of equal position on their hosts form a *lane*; there are as many lanes as the
// host with the fewest participants has. Lane l owns slice l of every chunk: its members fold the
// slice for their hosts and exchange it with each other. A chunk passes through these phases:
//
//   contribution  to the owners in the host: each member's values of their slices
//   partial       to the lane: the owner's fold of its host's values. Each host gets its part, or
//                 everything if that takes no more bytes (two hosts) or no more time (small)
//   result        to the lane: the fold over hosts of the sender's part; unless all have everything
//   spread        to the host: the result of the slice
//
// With one participant on every host there is no contribution and no spread phase.
//
// The values of a host's only member are also its partials: if a chunk of them is contiguous, it is
// sent from the tensor without a fold or copy. No result is written there until it has been sent.
//
// If sums are sent in a smaller type, all phases except the contribution use it: partials and
// results are rounded to it, and converted to the tensors' type only at the end.
#include "collectives/hosts_allreduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "collectives/fold.h"
#include "collectives/fold_loop.h"
#include "collectives/hosts_phases.h"

namespace horoscale {
namespace {

// The bytes that a network carries in the time of a hop (docs/algorithms.md has the measurements).
constexpr int64_t kHopBytes = 16 * 1024;

// Whether the number of messages matters rather than their bytes. Then there is one lane, and each
// member folds everything. That saves a hop, but a host sends (H-1) B instead of 2 (H-1)/H B: that
// is (H-1) (H-2)/H B more, which is nothing for two hosts.
bool IsSmall(int64_t hosts, int64_t bytes) {
  return bytes <= kHopBytes && bytes * (hosts - 1) * (hosts - 2) <= kHopBytes * hosts;
}

// Derived from the arguments, and equal on all members.
struct Plan {
  Plan(const Exchange& exchange, const HostGroups& hosts, int64_t bytes)
      : lanes(IsSmall(hosts.count(), bytes) ? 1 : hosts.fewest()),
        phases(exchange, hosts, hosts.count() > 2 && !IsSmall(hosts.count(), bytes),
               DivideUp(bytes, static_cast<int64_t>(exchange.chunk_bytes()))) {}

  uint32_t lanes;
  HostsPhases phases;
};

class HostsAllreduce : public FoldLoop {
 public:
  HostsAllreduce(Exchange& exchange, HostGroups hosts, AllreduceArgs args, Plan plan)
      : FoldLoop(exchange, Participants(exchange, args.absent), plan.phases.rounds(),
                 args.reduction.dtype),
        in_host_(InHost(args.reduction, args.encoding.type())),
        between_hosts_(BetweenHosts(args.reduction, args.encoding.type())),
        into_tensors_(IntoTensors(between_hosts_, args.reduction.dtype)),
        segments_(std::move(args.segments)),
        hosts_(std::move(hosts)),
        plan_(std::move(plan)),
        banks_(exchange.banks()),
        host_(hosts_.HostOf(self())),
        locals_(hosts_.members(host_)),
        sends_input_(locals_.size() == 1 && in_host_.prescale == 1.0 && !in_host_.result),
        extents_(size()),
        partials_(banks_),
        results_(banks_),
        parts_(hosts_.count()) {
    if (Lane(self()) >= plan_.lanes) return;
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      lane_.push_back(hosts_.members(host)[Lane(self())]);
    }
  }

 private:
  uint32_t Lane(uint32_t member) const { return hosts_.PositionOf(member); }

  // In offsets of the whole sequence of bytes. Members beyond the lanes have empty slices.
  ByteRange Chunk(int64_t chunk) const {
    const int64_t first = chunk * chunk_bytes();
    return {first, std::min(chunk_bytes(), segments_.bytes() - first)};
  }
  ByteRange Slice(int64_t chunk, uint32_t member) const {
    const ByteRange whole = Chunk(chunk);
    if (Lane(member) >= plan_.lanes) return {whole.first, 0};
    const ByteRange slice = SliceOf(whole.bytes, plan_.lanes, Lane(member));
    return {whole.first + slice.first, slice.bytes};
  }
  // The part of a slice that a host folds, relative to the slice.
  ByteRange Part(ByteRange slice, uint32_t host) const {
    if (!plan_.phases.has(kResult)) return {0, slice.bytes};
    return SliceOf(slice.bytes, hosts_.count(), host);
  }
  // The size on the wire of this many of the tensors' bytes.
  int64_t OnWire(int64_t bytes) const { return BytesIn(between_hosts_.dtype, bytes); }
  ByteRange OnWire(ByteRange range) const { return {OnWire(range.first), OnWire(range.bytes)}; }

  bool Send(int64_t round) override {
    const int64_t chunk = plan_.phases.ChunkOf(round);
    switch (plan_.phases.PhaseOf(round)) {
      case kContribution:
        return SendContribution(round, chunk);
      case kPartial:
        return SendPartial(round, chunk);
      case kResult:
        return SendResult(round, chunk);
      default:
        return SendSpread(round, chunk);
    }
  }

  bool SendContribution(int64_t round, int64_t chunk) {
    const auto is_for = [&](uint32_t owner) {
      return owner != self() && Slice(chunk, owner).bytes > 0;
    };
    if (std::none_of(locals_.begin(), locals_.end(), is_for)) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    ClearExtents();
    for (uint32_t owner : locals_) {
      if (!is_for(owner)) continue;
      const ByteRange slice = Slice(chunk, owner);
      const int64_t offset = slice.first - Chunk(chunk).first;
      segments_.Gather(bank + offset, slice.first, slice.bytes);
      SetExtent(owner, {offset, slice.bytes});
    }
    PublishExtents(round, Chunk(chunk).bytes, extents_);
    return true;
  }

  bool SendPartial(int64_t round, int64_t chunk) {
    const ByteRange slice = Slice(chunk, self());
    if (slice.bytes > 0) {
      std::byte* bank = Reserve(round);
      if (bank == nullptr) return false;
      const int64_t contribution =
          locals_.size() > 1 ? plan_.phases.RoundOf(kContribution, chunk) : round;
      if (!PeekAll(contribution, locals_)) return false;
      ClearExtents();
      for (uint32_t host = 0; host < hosts_.count(); ++host) {
        if (host != host_) SetExtent(lane_[host], OnWire(Part(slice, host)));
      }
      if (SendInput(round, slice)) {
        bank = nullptr;
      } else {
        FoldRange(in_host_, segments_, slice.first, slice.bytes, slice.first - Chunk(chunk).first,
                  bank);
        PublishExtents(round, OnWire(slice.bytes), extents_);
      }
      partials_[static_cast<size_t>(chunk) % banks_] = bank;
    }
    ++folded_chunks_;
    return true;
  }

  bool SendInput(int64_t round, ByteRange slice) {
    const std::byte* input =
        sends_input_ ? segments_.InOnePiece(slice.first, slice.bytes) : nullptr;
    return input != nullptr && PublishInPlace(round, input, slice.bytes, extents_);
  }

  bool SendResult(int64_t round, int64_t chunk) {
    const ByteRange slice = Slice(chunk, self());
    const ByteRange part = Part(slice, host_);
    if (part.bytes > 0) {
      std::byte* bank = Reserve(round);
      if (bank == nullptr || !PeekPartials(chunk)) return false;
      FoldRange(between_hosts_, segments_, slice.first + part.first, part.bytes, part.first, bank);
      ClearExtents();
      for (uint32_t owner : lane_) {
        if (owner != self()) SetExtent(owner, {0, OnWire(part.bytes)});
      }
      PublishExtents(round, OnWire(part.bytes), extents_);
      results_[static_cast<size_t>(chunk) % banks_] = bank;
    }
    ++reduced_chunks_;
    return true;
  }

  bool SendSpread(int64_t round, int64_t chunk) {
    const ByteRange slice = Slice(chunk, self());
    if (locals_.size() == 1 || slice.bytes == 0) return Finish(chunk, nullptr);
    std::byte* bank = Reserve(round);
    if (bank == nullptr || !Finish(chunk, bank)) return false;
    ClearExtents();
    for (uint32_t member : locals_) {
      if (member != self()) SetExtent(member, {0, OnWire(slice.bytes)});
    }
    PublishExtents(round, OnWire(slice.bytes), extents_);
    Deliver(bank, slice.first, slice.bytes);
    return true;
  }

  // Puts the result of this member's slice into the bank, or into the tensors if that is null.
  bool Finish(int64_t chunk, std::byte* bank) {
    const ByteRange slice = Slice(chunk, self());
    if (slice.bytes > 0) {
      if (sends_input_ && !HasLeft(plan_.phases.RoundOf(kPartial, chunk))) return false;
      if (plan_.phases.has(kResult)) {
        if (!CollectResults(chunk, bank)) return false;
      } else {
        if (!PeekPartials(chunk)) return false;
        FoldRange(bank != nullptr ? between_hosts_ : into_tensors_, segments_, slice.first,
                  slice.bytes, 0, bank);
      }
    }
    ++finished_chunks_;
    return true;
  }

  // Copies results into the tensors.
  void Deliver(const std::byte* result, int64_t first, int64_t bytes) {
    if (!into_tensors_.result) return segments_.Scatter(result, first, bytes);
    const Reduction convert = {.dtype = into_tensors_.dtype, .result = into_tensors_.result};
    segments_.ForEachRun(first, bytes, [&](const Segment& run, int64_t offset) {
      Fold(convert, run.out, std::array{result + OnWire(offset)},
           OnWire(run.bytes) / static_cast<int64_t>(SizeOf(convert.dtype)));
    });
  }

  bool PeekPartials(int64_t chunk) {
    return PeekAll(plan_.phases.RoundOf(kPartial, chunk), lane_,
                   partials_[static_cast<size_t>(chunk) % banks_]);
  }

  bool CollectResults(int64_t chunk, std::byte* bank) {
    const ByteRange slice = Slice(chunk, self());
    const int64_t round = plan_.phases.RoundOf(kResult, chunk);
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      if (Part(slice, host).bytes == 0) continue;
      parts_[host] =
          host == host_ ? results_[static_cast<size_t>(chunk) % banks_] : Peek(round, lane_[host]);
      if (parts_[host] == nullptr) return false;
    }
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      const ByteRange part = Part(slice, host);
      if (part.bytes == 0) continue;
      if (bank != nullptr) {
        const ByteRange bytes = OnWire(part);
        std::memcpy(bank + bytes.first, parts_[host], static_cast<size_t>(bytes.bytes));
      } else {
        Deliver(parts_[host], slice.first + part.first, part.bytes);
      }
    }
    return true;
  }

  Progress Receive(int64_t round) override {
    const int64_t chunk = plan_.phases.ChunkOf(round);
    switch (plan_.phases.PhaseOf(round)) {
      case kContribution:
        return chunk < folded_chunks_ ? Progress::kDone : Progress::kIdle;
      case kPartial:
        if (!plan_.phases.has(kResult)) return ReceiveFromLane(chunk);
        return chunk < reduced_chunks_ ? Progress::kDone : Progress::kIdle;
      case kResult:
        return ReceiveFromLane(chunk);
      default:
        return ReceiveSpread(round, chunk);
    }
  }

  // The last phase between hosts is read when the chunk is spread, or here if there is no spread
  // phase.
  Progress ReceiveFromLane(int64_t chunk) {
    if (!plan_.phases.has(kSpread))
      return Finish(chunk, nullptr) ? Progress::kDone : Progress::kIdle;
    return chunk < finished_chunks_ ? Progress::kDone : Progress::kIdle;
  }

  Progress ReceiveSpread(int64_t round, int64_t chunk) {
    return ReceiveFromEach(
        round,
        [&](uint32_t owner) {
          return hosts_.HostOf(owner) == host_ && Slice(chunk, owner).bytes > 0;
        },
        [&](uint32_t owner, const std::byte* result) {
          const ByteRange slice = Slice(chunk, owner);
          Deliver(result, slice.first, slice.bytes);
        });
  }

  void ClearExtents() { std::fill(extents_.begin(), extents_.end(), Exchange::Extent{}); }
  void SetExtent(uint32_t member, ByteRange range) {
    extents_[member] = {static_cast<size_t>(range.first), static_cast<size_t>(range.bytes)};
  }

  const Reduction in_host_;
  const Reduction between_hosts_;
  const Reduction into_tensors_;
  const SegmentMap segments_;
  const HostGroups hosts_;
  const Plan plan_;
  const size_t banks_;
  const uint32_t host_;                  // of this member
  const std::vector<uint32_t>& locals_;  // its participants
  const bool sends_input_;
  std::vector<uint32_t> lane_;  // this member's, by host; empty beyond the lanes
  std::vector<Exchange::Extent> extents_;
  // In this member's banks, by chunk: a bank is not reused before the next phase has read it. A
  // partial that was sent from the tensors is null.
  std::vector<const std::byte*> partials_;
  std::vector<const std::byte*> results_;
  std::vector<const std::byte*> parts_;  // of a result, by host
  int64_t folded_chunks_ = 0;
  int64_t reduced_chunks_ = 0;
  int64_t finished_chunks_ = 0;
};

}  // namespace

Reduction InHost(Reduction reduction, std::optional<DataType> wire) {
  reduction.postscale = 1.0;
  reduction.divisor = 1;
  reduction.result = wire;
  return reduction;
}

Reduction BetweenHosts(Reduction reduction, std::optional<DataType> wire) {
  reduction.prescale = 1.0;
  reduction.dtype = wire.value_or(reduction.dtype);
  return reduction;
}

Reduction IntoTensors(Reduction between_hosts, DataType dtype) {
  if (between_hosts.dtype != dtype) between_hosts.result = dtype;
  return between_hosts;
}

std::unique_ptr<Collective> MakeHostsAllreduce(Exchange& exchange, HostGroups hosts,
                                               AllreduceArgs args) {
  int64_t bytes = 0;
  for (const Segment& segment : args.segments) bytes += segment.bytes;
  Plan plan(exchange, hosts, bytes);
  if (std::find(args.absent.begin(), args.absent.end(), exchange.self()) != args.absent.end()) {
    return std::make_unique<Bystander>(exchange, plan.phases.rounds());
  }
  return std::make_unique<HostsAllreduce>(exchange, std::move(hosts), std::move(args),
                                          std::move(plan));
}

}  // namespace horoscale
