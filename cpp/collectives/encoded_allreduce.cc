// Tensors are divided into units (residuals.h); a chunk holds as many as fit. A unit belongs to a
// lane, that is, the members with equal positions on their hosts, and to a host. A chunk passes
// through the phases of an allreduce over hosts:
//
//   contribution  to the owners in the host: each member's values of the units of their lanes
//   partial       to the lane: the owner's fold of its host's values, encoded; each unit to its
//                 host, or all units where there are two hosts
//   result        to the lane: the fold over hosts of the sender's host's units, encoded again; not
//                 with two hosts
//   spread        to the host: the decoded results of the lane's units
//
// All members fold and deliver decoded values, so that all have the same bits.
#include "collectives/encoded_allreduce.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "collectives/encoded_fold.h"
#include "collectives/encoding.h"
#include "collectives/fold.h"
#include "collectives/hosts_phases.h"

namespace horoscale {
namespace {

class EncodedAllreduce : public EncodedFold {
 public:
  EncodedAllreduce(Exchange& exchange, HostGroups hosts, const AllreduceArgs& args,
                   EncodedUnits units, HostsPhases phases)
      : EncodedFold(exchange, std::move(hosts), std::move(units), phases.rounds(), args.reduction,
                    args.encoding, args.totals),
        phases_(std::move(phases)),
        partials_(banks_),
        results_(banks_) {
    if (lane_ >= units_.lanes()) return;
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      members_.push_back(hosts_.members(host)[lane_]);
    }
  }

 private:
  bool Send(int64_t round) override {
    const int64_t chunk = phases_.ChunkOf(round);
    switch (phases_.PhaseOf(round)) {
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

  bool SendPartial(int64_t round, int64_t chunk) {
    const Run run = OwnLane(chunk);
    if (!run.empty()) {
      std::byte* const bank = Reserve(round);
      if (bank == nullptr || !FindContributions(phases_.RoundOf(kContribution, chunk)))
        return false;
      const CodingTime time(totals_);
      for (size_t i = run.first; i < run.end; ++i) {
        FoldHost(units_[i], values_);
        EncodeValues(units_[i], bank + units_[i].encoded_place, units_[i].sum_residuals);
      }
      ClearExtents();
      for (uint32_t host = 0; host < hosts_.count(); ++host) {
        if (host == host_) continue;
        const Run part = phases_.has(kResult) ? units_.Part(chunk, lane_, host) : run;
        SetExtent(members_[host], units_.EncodedOf(part));
      }
      const ByteRange range = units_.EncodedOf(run);
      PublishExtents(round, range.first + range.bytes, extents_);
      partials_[Bank(chunk)] = bank;
    }
    ++folded_chunks_;
    return true;
  }

  bool SendResult(int64_t round, int64_t chunk) {
    const Run part = units_.Part(chunk, lane_, host_);
    if (!IsFolding() || part.empty()) {
      ++reduced_chunks_;
      return true;
    }
    std::byte* const bank = Reserve(round);
    if (bank == nullptr || !FindPartials(chunk)) return false;
    const ByteRange range = units_.EncodedOf(part);
    const CodingTime time(totals_);
    for (size_t i = part.first; i < part.end; ++i) {
      FoldPartials(units_[i], average_, AsBytes(values_));
      EncodeValues(units_[i], bank + units_[i].encoded_place - range.first,
                   units_[i].result_residuals);
    }
    ClearExtents();
    for (uint32_t member : members_) {
      if (member != self()) SetExtent(member, {0, range.bytes});
    }
    PublishExtents(round, range.bytes, extents_);
    results_[Bank(chunk)] = bank;
    ++reduced_chunks_;
    return true;
  }

  bool IsFolding() const { return !members_.empty(); }

  // Finds the chunk's partials by host.
  bool FindPartials(int64_t chunk) {
    const int64_t round = phases_.RoundOf(kPartial, chunk);
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      sources_[host] = host == host_ ? partials_[Bank(chunk)] : Peek(round, members_[host]);
      if (sources_[host] == nullptr) return false;
    }
    return true;
  }

  bool FindResults(int64_t chunk) {
    const int64_t round = phases_.RoundOf(kResult, chunk);
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      if (units_.Part(chunk, lane_, host).empty()) continue;
      sources_[host] = host == host_ ? results_[Bank(chunk)] : Peek(round, members_[host]);
      if (sources_[host] == nullptr) return false;
    }
    return true;
  }

  bool SendSpread(int64_t round, int64_t chunk) {
    const Run run = OwnLane(chunk);
    if (!IsFolding() || run.empty()) {
      ++finished_chunks_;
      return true;
    }
    if (locals_.size() == 1) return Finish(chunk, nullptr);
    std::byte* const bank = Reserve(round);
    if (bank == nullptr || !Finish(chunk, bank)) return false;
    const ByteRange range = units_.ValuesOf(run);
    ClearExtents();
    for (uint32_t member : locals_) {
      if (member != self()) SetExtent(member, {0, range.bytes});
    }
    PublishExtents(round, range.bytes, extents_);
    Deliver(run, bank);
    return true;
  }

  // Puts the results of this lane into the bank, or into the tensors if that is null.
  bool Finish(int64_t chunk, std::byte* bank) {
    const Run run = OwnLane(chunk);
    if (IsFolding() && !run.empty()) {
      if (phases_.has(kResult) ? !FindResults(chunk) : !FindPartials(chunk)) return false;
      const int64_t first = units_.ValuesOf(run).first;
      const CodingTime time(totals_);
      for (size_t i = run.first; i < run.end; ++i) {
        const Unit& unit = units_[i];
        std::byte* const dst = bank == nullptr ? unit.out : bank + unit.place - first;
        if (phases_.has(kResult)) {
          DecodeResult(chunk, unit, dst);
        } else {
          FoldPartials(unit, InTensors(average_), dst);
        }
      }
    }
    ++finished_chunks_;
    return true;
  }

  void DecodeResult(int64_t chunk, const Unit& unit, std::byte* dst) {
    const ByteRange part = units_.EncodedOf(units_.Part(chunk, lane_, unit.owner));
    Decode(encoding_, sums_, sources_[unit.owner] + unit.encoded_place - part.first, unit.elements);
    const std::byte* const result = AsBytes(sums_);
    Fold(InTensors({.dtype = DataType::kFloat32}), dst, std::span(&result, 1), unit.elements);
  }

  void Deliver(Run run, const std::byte* results) {
    const int64_t first = units_.ValuesOf(run).first;
    for (size_t i = run.first; i < run.end; ++i) {
      const Unit& unit = units_[i];
      std::memcpy(unit.out, results + unit.place - first,
                  static_cast<size_t>(units_.BytesOf(unit)));
    }
  }

  Progress Receive(int64_t round) override {
    const int64_t chunk = phases_.ChunkOf(round);
    const auto when = [](bool is_done) { return is_done ? Progress::kDone : Progress::kIdle; };
    switch (phases_.PhaseOf(round)) {
      case kContribution:
        return when(chunk < folded_chunks_);
      case kPartial:
        return phases_.has(kResult) ? when(chunk < reduced_chunks_) : ReceiveFromLane(chunk);
      case kResult:
        return ReceiveFromLane(chunk);
      default:
        return ReceiveSpread(round, chunk);
    }
  }

  // The last phase between hosts is read when the chunk is spread, or here if there is no spread
  // phase.
  Progress ReceiveFromLane(int64_t chunk) {
    const bool is_done = phases_.has(kSpread) ? chunk < finished_chunks_ : Finish(chunk, nullptr);
    return is_done ? Progress::kDone : Progress::kIdle;
  }

  Progress ReceiveSpread(int64_t round, int64_t chunk) {
    return ReceiveFromEach(
        round,
        [&](uint32_t owner) {
          const uint32_t lane = hosts_.PositionOf(owner);
          return hosts_.HostOf(owner) == host_ && lane < units_.lanes() &&
                 !units_.Lane(chunk, lane).empty();
        },
        [&](uint32_t owner, const std::byte* results) {
          Deliver(units_.Lane(chunk, hosts_.PositionOf(owner)), results);
        });
  }

  const HostsPhases phases_;
  std::vector<uint32_t> members_;  // of this lane, by host; empty beyond the lanes
  // In this member's banks, by chunk: a bank is not reused before the next phase has read it.
  std::vector<const std::byte*> partials_;
  std::vector<const std::byte*> results_;
  int64_t reduced_chunks_ = 0;
  int64_t finished_chunks_ = 0;
};

}  // namespace

bool MayEncode(const AllreduceArgs& args) {
  return IsEncoded(args.encoding, args.reduction) && args.absent.empty();
}

std::unique_ptr<Collective> MakeEncodedAllreduce(Exchange& exchange, HostGroups hosts,
                                                 AllreduceArgs args) {
  EncodedUnits units(exchange, hosts, args);
  HostsPhases phases(exchange, hosts, hosts.count() > 2, units.chunks());
  return std::make_unique<EncodedAllreduce>(exchange, std::move(hosts), args, std::move(units),
                                            std::move(phases));
}

}  // namespace horoscale
