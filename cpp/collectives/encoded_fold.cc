#include "collectives/encoded_fold.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "collectives/encoding.h"
#include "collectives/fold.h"
#include "collectives/hosts_allreduce.h"
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

void Add(float* sums, const float* values, int64_t count, bool is_first) {
  if (is_first) {
    std::copy_n(values, count, sums);
  } else {
    for (int64_t i = 0; i < count; ++i) sums[i] += values[i];
  }
}

}  // namespace

bool IsEncoded(const Encoding& encoding, const Reduction& reduction) {
  const bool is_sum = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  return encoding.IsLossy() && encoding.IsFor(reduction.dtype) && is_sum;
}

CodingTime::CodingTime(EncodingTotals* totals) : totals_(totals) {
  if (totals_ != nullptr) since_ = MonotonicSeconds();
}

CodingTime::~CodingTime() {
  if (totals_ != nullptr) totals_->seconds += MonotonicSeconds() - since_;
}

EncodedFold::EncodedFold(Exchange& exchange, HostGroups hosts, EncodedUnits units, int64_t rounds,
                         const Reduction& reduction, const Encoding& encoding,
                         EncodingTotals* totals)
    : RoundLoop(exchange, Participants(exchange, {}), rounds),
      encoding_(encoding),
      dtype_(reduction.dtype),
      in_host_(SumInHost(reduction)),
      average_(AverageOfSums(reduction)),
      hosts_(std::move(hosts)),
      units_(std::move(units)),
      banks_(exchange.banks()),
      host_(hosts_.HostOf(self())),
      lane_(hosts_.PositionOf(self())),
      locals_(hosts_.members(host_)),
      totals_(totals),
      extents_(size()),
      sources_(hosts_.count()) {}

bool EncodedFold::SendContribution(int64_t round, int64_t chunk) {
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
      std::memcpy(bank + unit.place, unit.in, static_cast<size_t>(units_.BytesOf(unit)));
    }
    const ByteRange range = units_.ValuesOf(run);
    SetExtent(locals_[lane], range);
    end = range.first + range.bytes;
  }
  PublishExtents(round, end, extents_);
  return true;
}

bool EncodedFold::FindContributions(int64_t round) {
  contributions_.assign(locals_.size(), nullptr);
  if (locals_.size() == 1) return true;
  for (size_t local = 0; local < locals_.size(); ++local) {
    if (locals_[local] == self()) continue;
    contributions_[local] = Peek(round, locals_[local]);
    if (contributions_[local] == nullptr) return false;
  }
  return true;
}

void EncodedFold::FoldHost(const Unit& unit, float* sums) {
  inputs_.clear();
  for (const std::byte* contribution : contributions_) {
    inputs_.push_back(contribution == nullptr ? unit.in : contribution + unit.place);
  }
  Fold(in_host_, AsBytes(sums), inputs_, unit.elements);
}

void EncodedFold::EncodeValues(const Unit& unit, std::byte* out, float* residuals) {
  Encode(encoding_, out, values_, residuals, unit.elements);
  if (totals_ == nullptr) return;
  ++totals_->calls;
  totals_->bytes_before += static_cast<uint64_t>(units_.BytesOf(unit));
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

void EncodedFold::FoldPartials(const Unit& unit, const Reduction& reduction, std::byte* dst,
                               const float* own) {
  for (uint32_t host = 0; host < hosts_.count(); ++host) {
    if (host == host_ && own != nullptr) {
      Add(sums_, own, unit.elements, host == 0);
      continue;
    }
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

Reduction EncodedFold::InTensors(Reduction reduction) const {
  if (dtype_ != DataType::kFloat32) reduction.result = dtype_;
  return reduction;
}

void EncodedFold::ClearExtents() {
  std::fill(extents_.begin(), extents_.end(), Exchange::Extent{});
}

void EncodedFold::SetExtent(uint32_t member, ByteRange range) {
  extents_[member] = {static_cast<size_t>(range.first), static_cast<size_t>(range.bytes)};
}

}  // namespace horoscale
