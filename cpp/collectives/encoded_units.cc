#include "collectives/encoded_units.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/encoding.h"

namespace horoscale {
namespace {

// The relative error is measured on two of this many units of a lane; the first may belong to
// another lane.
constexpr int64_t kMeasuredUnits = 16;

bool IsMeasured(int64_t index) { return index % kMeasuredUnits < 2; }

int64_t UnitElements(const Exchange& exchange) {
  const auto floats = static_cast<uint64_t>(exchange.chunk_bytes() / sizeof(float));
  return std::min(kGroupElements, static_cast<int64_t>(std::bit_floor(floats)));
}

using Unit = EncodedUnits::Unit;
using Run = EncodedUnits::Run;

// The units of a run, sorted by `key`, whose key has this value.
Run Matching(const std::vector<Unit>& units, Run run, uint32_t Unit::* key, uint32_t value) {
  const auto begin = units.begin() + static_cast<ptrdiff_t>(run.first);
  const auto end = units.begin() + static_cast<ptrdiff_t>(run.end);
  const auto first =
      std::partition_point(begin, end, [&](const Unit& unit) { return unit.*key < value; });
  const auto last =
      std::partition_point(first, end, [&](const Unit& unit) { return unit.*key == value; });
  return {static_cast<size_t>(first - units.begin()), static_cast<size_t>(last - units.begin())};
}

bool IsBeforeInLanes(const Unit& a, const Unit& b) {
  return std::pair(a.lane, a.owner) < std::pair(b.lane, b.owner);
}

template <typename IsBefore>
void Sort(std::vector<Unit>& units, Run run, IsBefore is_before) {
  std::stable_sort(units.begin() + static_cast<ptrdiff_t>(run.first),
                   units.begin() + static_cast<ptrdiff_t>(run.end), is_before);
}

}  // namespace

EncodedUnits::EncodedUnits(const UnitPlaces& places, uint32_t lanes, DataType dtype,
                           const Encoding& encoding)
    : places_(places),
      lanes_(lanes),
      element_bytes_(static_cast<int64_t>(SizeOf(dtype))),
      encoding_(encoding) {}

EncodedUnits::EncodedUnits(const Exchange& exchange, const HostGroups& hosts,
                           const AllreduceArgs& args)
    : EncodedUnits(UnitPlaces{hosts.fewest(), hosts.count(), UnitElements(exchange)},
                   hosts.fewest(), args.reduction.dtype, args.encoding) {
  const uint32_t self = exchange.self();
  for (size_t i = 0; i < args.segments.size(); ++i) {
    const TensorPart whole{.elements = args.segments[i].bytes / element_bytes_};
    AddTensor(args.segments[i], args.parts.empty() ? whole : args.parts[i], hosts.PositionOf(self),
              hosts.HostOf(self));
  }
  DivideIntoChunks(hosts, static_cast<int64_t>(exchange.chunk_bytes()));
  for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
    Sort(units_, Chunk(chunk), IsBeforeInLanes);
    PlaceValues(Chunk(chunk));
    PlaceEncoded(Chunk(chunk));
  }
}

EncodedUnits::EncodedUnits(const Exchange& exchange, const HostGroups& hosts,
                           const ReducescatterArgs& args)
    : EncodedUnits(UnitPlaces{1, 1, UnitElements(exchange)},
                   static_cast<uint32_t>(hosts.members(hosts.HostOf(exchange.self())).size()),
                   args.reduction.dtype, args.encoding) {
  std::vector<std::vector<Unit>> by_owner(exchange.size());
  for (size_t i = 0; i < args.items.size(); ++i) {
    AddRows(exchange, hosts, args, i, by_owner);
  }
  AddInTurns(by_owner);
  DivideIntoChunks(hosts, static_cast<int64_t>(exchange.chunk_bytes()));
  for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
    Sort(units_, Chunk(chunk), [](const Unit& a, const Unit& b) { return a.owner < b.owner; });
    PlaceEncoded(Chunk(chunk));
    Sort(units_, Chunk(chunk), IsBeforeInLanes);
    PlaceValues(Chunk(chunk));
  }
}

Run EncodedUnits::Lane(int64_t chunk, uint32_t lane) const {
  return Matching(units_, Chunk(chunk), &Unit::lane, lane);
}

Run EncodedUnits::Part(int64_t chunk, uint32_t lane, uint32_t owner) const {
  return Matching(units_, Lane(chunk, lane), &Unit::owner, owner);
}

ByteRange EncodedUnits::ValuesOf(Run run) const {
  if (run.empty()) return {};
  const int64_t first = units_[run.first].place;
  const Unit& last = units_[run.end - 1];
  return {first, last.place + BytesOf(last) - first};
}

int64_t EncodedUnits::EncodedBytesOf(const Unit& unit) const {
  return EncodedBytes(encoding_, unit.elements);
}

ByteRange EncodedUnits::EncodedOf(Run run) const {
  if (run.empty()) return {};
  const int64_t first = units_[run.first].encoded_place;
  const Unit& last = units_[run.end - 1];
  return {first, last.encoded_place + EncodedBytesOf(last) - first};
}

void EncodedUnits::AddTensor(const Segment& segment, const TensorPart& part, uint32_t own_lane,
                             uint32_t own_host) {
  TensorResiduals* const residuals = part.residuals;
  if (residuals != nullptr) residuals->Prepare(places_, part.home, part.elements);
  const int64_t end = part.begin + segment.bytes / element_bytes_;
  for (int64_t at = part.begin; at < end;) {
    const int64_t index = at / places_.elements;
    const int64_t skip = at - index * places_.elements;
    const UnitPlaces::Place place = places_.Of(index, part.home);
    Unit& unit = units_.emplace_back();
    unit.in = segment.in + (at - part.begin) * element_bytes_;
    unit.out = segment.out + (at - part.begin) * element_bytes_;
    unit.elements = std::min(places_.elements - skip, end - at);
    unit.lane = place.lane;
    unit.owner = place.host;
    unit.is_measured = IsMeasured(place.sum);
    at += unit.elements;
    if (residuals == nullptr || place.lane != own_lane) continue;
    unit.tensor = residuals;
    unit.sum_residuals = residuals->sums.data() + place.sum * places_.elements + skip;
    if (places_.hosts == 2 || place.host != own_host) continue;
    unit.result_residuals = residuals->results.data() + place.result * places_.elements + skip;
  }
}

// The rows of each member are units of their own, so that their encodings depend on no other rows.
void EncodedUnits::AddRows(const Exchange& exchange, const HostGroups& hosts,
                           const ReducescatterArgs& args, size_t item,
                           std::vector<std::vector<Unit>>& by_owner) {
  const ReducescatterItem& tensor = args.items[item];
  const uint32_t self = exchange.self();
  const uint32_t own_host = hosts.HostOf(self);
  // What stays on the host is not encoded.
  const auto is_kept = [&](uint32_t owner) {
    return hosts.HostOf(owner) != own_host && hosts.RepresentativeOf(owner, own_host) == self;
  };
  std::vector<RowRange> rows;
  std::vector<int64_t> shares;
  int64_t kept = 0;
  for (uint32_t owner = 0; owner < exchange.size(); ++owner) {
    rows.push_back(args.RowsFor(tensor, exchange.size(), owner));
    shares.push_back(rows.back().count * tensor.row_bytes / element_bytes_);
    if (is_kept(owner)) kept += shares.back();
  }
  TensorResiduals* const residuals = args.parts.empty() ? nullptr : args.parts[item].residuals;
  if (residuals != nullptr) residuals->PrepareShares(shares, places_.elements, kept);
  int64_t encoded = 0;  // elements before
  int64_t index = 0;
  for (uint32_t owner = 0; owner < exchange.size(); ++owner) {
    const int64_t before = rows[owner].first * tensor.row_bytes;
    for (int64_t at = 0; at < shares[owner]; at += places_.elements) {
      Unit& unit = by_owner[owner].emplace_back();
      unit.in = tensor.in + before + at * element_bytes_;
      unit.out = owner == self ? tensor.out + at * element_bytes_ : nullptr;
      unit.elements = std::min(places_.elements, shares[owner] - at);
      unit.lane = hosts.PositionOf(hosts.RepresentativeOf(owner, own_host));
      unit.owner = owner;
      if (residuals == nullptr || !is_kept(owner)) continue;
      unit.is_measured = IsMeasured(index++);
      unit.tensor = residuals;
      unit.sum_residuals = residuals->sums.data() + encoded;
      encoded += unit.elements;
    }
  }
}

// One unit of each owner after the other, so that every chunk has some for all of them.
void EncodedUnits::AddInTurns(const std::vector<std::vector<Unit>>& by_owner) {
  bool is_more = true;
  for (size_t turn = 0; is_more; ++turn) {
    is_more = false;
    for (const std::vector<Unit>& units : by_owner) {
      if (turn >= units.size()) continue;
      units_.push_back(units[turn]);
      is_more = true;
    }
  }
}

void EncodedUnits::DivideIntoChunks(const HostGroups& hosts, int64_t room) {
  // Where values are gathered within the host, they must fit into a chunk, too.
  const bool holds_values = hosts.most() > 1;
  starts_.push_back(0);
  int64_t bytes = 0;
  for (size_t i = 0; i < units_.size(); ++i) {
    const int64_t encoded = EncodedBytesOf(units_[i]);
    const int64_t more = holds_values ? std::max(encoded, BytesOf(units_[i])) : encoded;
    if (bytes + more > room) {
      starts_.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  starts_.push_back(units_.size());
}

void EncodedUnits::PlaceValues(Run chunk) {
  int64_t place = 0;
  for (size_t i = chunk.first; i < chunk.end; ++i) {
    units_[i].place = place;
    place += BytesOf(units_[i]);
  }
}

void EncodedUnits::PlaceEncoded(Run chunk) {
  int64_t place = 0;
  for (size_t i = chunk.first; i < chunk.end; ++i) {
    units_[i].encoded_place = place;
    place += EncodedBytesOf(units_[i]);
  }
}

}  // namespace horoscale
