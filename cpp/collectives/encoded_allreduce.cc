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

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collectives/encoded_units.h"
#include "collectives/encoding.h"
#include "collectives/fold.h"
#include "collectives/hosts_allreduce.h"
#include "collectives/hosts_phases.h"
#include "collectives/round_loop.h"
#include "platform/clock.h"

namespace horoscale {
namespace {

// The two parts of a reduction: to float32 in the host, and of float32 between hosts.
Reduction SumInHost(const Reduction& reduction) {
  if (reduction.dtype == DataType::kFloat32) return InHost(reduction, std::nullopt);
  return InHost(reduction, DataType::kFloat32);
}
Reduction AverageOfSums(const Reduction& reduction) {
  return BetweenHosts(reduction, DataType::kFloat32);
}

double SumOfSquares(const float* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double{values[i]} * double{values[i]};
  return sum;
}

// Adds the time between its construction and destruction.
class CodingTime {
 public:
  explicit CodingTime(EncodingTotals* totals) : totals_(totals) {
    if (totals_ != nullptr) since_ = MonotonicSeconds();
  }
  ~CodingTime() {
    if (totals_ != nullptr) totals_->seconds += MonotonicSeconds() - since_;
  }
  CodingTime(const CodingTime&) = delete;
  CodingTime& operator=(const CodingTime&) = delete;

 private:
  EncodingTotals* const totals_;
  double since_ = 0;
};

using Unit = EncodedUnits::Unit;
using Run = EncodedUnits::Run;

class EncodedAllreduce : public RoundLoop {
 public:
  EncodedAllreduce(Exchange& exchange, HostGroups hosts, const AllreduceArgs& args,
                   EncodedUnits units, HostsPhases phases)
      : RoundLoop(exchange, Participants(exchange, {}), phases.rounds()),
        encoding_(args.encoding),
        in_host_(SumInHost(args.reduction)),
        average_(AverageOfSums(args.reduction)),
        hosts_(std::move(hosts)),
        units_(std::move(units)),
        phases_(std::move(phases)),
        banks_(exchange.banks()),
        host_(hosts_.HostOf(self())),
        lane_(hosts_.PositionOf(self())),
        locals_(hosts_.members(host_)),
        totals_(args.totals),
        dtype_(args.reduction.dtype),
        extents_(size()),
        partials_(banks_),
        results_(banks_),
        sources_(hosts_.count()) {
    if (lane_ >= units_.lanes()) return;
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      members_.push_back(hosts_.members(host)[lane_]);
    }
  }

 private:
  Run OwnLane(int64_t chunk) const { return units_.Lane(chunk, lane_); }
  int64_t BytesOf(const Unit& unit) const { return units_.BytesOf(unit); }
  size_t Bank(int64_t chunk) const { return static_cast<size_t>(chunk) % banks_; }

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

  bool SendContribution(int64_t round, int64_t chunk) {
    const Run chunk_units = units_.Chunk(chunk);
    const Run own = OwnLane(chunk);
    if (own.first == chunk_units.first && own.end == chunk_units.end) return true;
    std::byte* const bank = Reserve(round);
    if (bank == nullptr) return false;
    ClearExtents();
    int64_t end = 0;
    for (uint32_t lane = 0; lane < units_.lanes(); ++lane) {
      const Run run = units_.Lane(chunk, lane);
      if (lane == lane_ || run.empty()) continue;
      for (size_t i = run.first; i < run.end; ++i) {
        const Unit& unit = units_[i];
        std::memcpy(bank + unit.place, unit.in, static_cast<size_t>(BytesOf(unit)));
      }
      const ByteRange range = units_.ValuesOf(run);
      SetExtent(locals_[lane], range);
      end = range.first + range.bytes;
    }
    PublishExtents(round, end, extents_);
    return true;
  }

  bool SendPartial(int64_t round, int64_t chunk) {
    const Run run = OwnLane(chunk);
    if (!run.empty()) {
      std::byte* const bank = Reserve(round);
      if (bank == nullptr || !FindContributions(chunk)) return false;
      const CodingTime time(totals_);
      for (size_t i = run.first; i < run.end; ++i) EncodeSum(units_[i], bank);
      ClearExtents();
      for (uint32_t host = 0; host < hosts_.count(); ++host) {
        if (host == host_) continue;
        const Run part = phases_.has(kResult) ? units_.Part(chunk, lane_, host) : run;
        SetExtent(members_[host], units_.EncodedOf(part));
      }
      PublishExtents(round, units_.EncodedOf(run).bytes, extents_);
      partials_[Bank(chunk)] = bank;
    }
    ++folded_chunks_;
    return true;
  }

  bool FindContributions(int64_t chunk) {
    contributions_.assign(locals_.size(), nullptr);
    if (locals_.size() == 1) return true;
    const int64_t round = phases_.RoundOf(kContribution, chunk);
    for (size_t local = 0; local < locals_.size(); ++local) {
      if (locals_[local] == self()) continue;
      contributions_[local] = Peek(round, locals_[local]);
      if (contributions_[local] == nullptr) return false;
    }
    return true;
  }

  void EncodeSum(const Unit& unit, std::byte* bank) {
    inputs_.clear();
    for (const std::byte* contribution : contributions_) {
      inputs_.push_back(contribution == nullptr ? unit.in : contribution + unit.place);
    }
    Fold(in_host_, AsBytes(values_), inputs_, unit.elements);
    EncodeValues(unit, bank + unit.encoded_place, unit.sum_residuals);
  }

  void EncodeValues(const Unit& unit, std::byte* out, float* residuals) {
    Encode(encoding_, out, values_, residuals, unit.elements);
    if (totals_ == nullptr) return;
    ++totals_->calls;
    totals_->bytes_before += static_cast<uint64_t>(BytesOf(unit));
    totals_->bytes_after += static_cast<uint64_t>(units_.EncodedBytesOf(unit));
    if (!unit.is_measured || residuals == nullptr) return;
    const double squares = SumOfSquares(values_, unit.elements);
    if (!(squares < std::numeric_limits<double>::infinity())) return;
    const double error_squares = SumOfSquares(residuals, unit.elements);
    totals_->squares += squares;
    totals_->error_squares += error_squares;
    unit.tensor->squares += squares;
    unit.tensor->error_squares += error_squares;
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

  // Folds the sources that FindPartials() found.
  void FoldPartials(const Unit& unit, const Reduction& reduction, std::byte* dst) {
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      const std::byte* const in = sources_[host] + unit.encoded_place;
      if (host == 0) {
        Decode(encoding_, sums_, in, unit.elements);
      } else {
        DecodeAndAdd(encoding_, sums_, in, unit.elements);
      }
    }
    const std::byte* const sums = AsBytes(sums_);
    Fold(reduction, dst, std::span(&sums, 1), unit.elements);
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
    const ByteRange part = units_.EncodedOf(units_.Part(chunk, lane_, unit.host));
    Decode(encoding_, sums_, sources_[unit.host] + unit.encoded_place - part.first, unit.elements);
    const std::byte* const result = AsBytes(sums_);
    Fold(InTensors({.dtype = DataType::kFloat32}), dst, std::span(&result, 1), unit.elements);
  }

  // The same, with the result in the tensors' type.
  Reduction InTensors(Reduction reduction) const {
    if (dtype_ != DataType::kFloat32) reduction.result = dtype_;
    return reduction;
  }

  void Deliver(Run run, const std::byte* results) {
    const int64_t first = units_.ValuesOf(run).first;
    for (size_t i = run.first; i < run.end; ++i) {
      const Unit& unit = units_[i];
      std::memcpy(unit.out, results + unit.place - first, static_cast<size_t>(BytesOf(unit)));
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

  void ClearExtents() { std::fill(extents_.begin(), extents_.end(), Exchange::Extent{}); }
  void SetExtent(uint32_t member, ByteRange range) {
    extents_[member] = {static_cast<size_t>(range.first), static_cast<size_t>(range.bytes)};
  }
  static std::byte* AsBytes(float* values) { return reinterpret_cast<std::byte*>(values); }

  const Encoding encoding_;
  const Reduction in_host_;  // to float32
  const Reduction average_;  // of sums in float32
  const HostGroups hosts_;
  const EncodedUnits units_;
  const HostsPhases phases_;
  const size_t banks_;
  const uint32_t host_;  // of this member
  const uint32_t lane_;
  const std::vector<uint32_t>& locals_;  // the host's participants
  EncodingTotals* const totals_;
  const DataType dtype_;
  std::vector<uint32_t> members_;  // of this lane, by host; empty beyond the lanes
  std::vector<Exchange::Extent> extents_;
  // In this member's banks, by chunk: a bank is not reused before the next phase has read it.
  std::vector<const std::byte*> partials_;
  std::vector<const std::byte*> results_;
  std::vector<const std::byte*> sources_;        // by host
  std::vector<const std::byte*> contributions_;  // by local member; null for its own input
  std::vector<const std::byte*> inputs_;
  alignas(64) float values_[kGroupElements];
  alignas(64) float sums_[kGroupElements];
  int64_t folded_chunks_ = 0;
  int64_t reduced_chunks_ = 0;
  int64_t finished_chunks_ = 0;
};

}  // namespace

bool MayEncode(const AllreduceArgs& args) {
  const Reduction& reduction = args.reduction;
  const bool is_sum = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  return args.encoding.IsLossy() && args.encoding.IsFor(reduction.dtype) && is_sum &&
         args.absent.empty();
}

std::unique_ptr<Collective> MakeEncodedAllreduce(Exchange& exchange, HostGroups hosts,
                                                 AllreduceArgs args) {
  EncodedUnits units(exchange, hosts, args);
  HostsPhases phases(exchange, hosts, hosts.count() > 2, units.chunks());
  return std::make_unique<EncodedAllreduce>(exchange, std::move(hosts), args, std::move(units),
                                            std::move(phases));
}

}  // namespace horoscale
