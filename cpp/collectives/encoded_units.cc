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

UnitPlaces PlacesOf(const Exchange& exchange, const HostGroups& hosts) {
  const auto floats = static_cast<uint64_t>(exchange.chunk_bytes() / sizeof(float));
  return {hosts.fewest(), hosts.count(),
          std::min(kGroupElements, static_cast<int64_t>(std::bit_floor(floats)))};
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

}  // namespace

EncodedUnits::EncodedUnits(const Exchange& exchange, const HostGroups& hosts,
                           const AllreduceArgs& args)
    : places_(PlacesOf(exchange, hosts)),
      element_bytes_(static_cast<int64_t>(SizeOf(args.reduction.dtype))),
      encoding_(args.encoding) {
  const uint32_t self = exchange.self();
  for (size_t i = 0; i < args.segments.size(); ++i) {
    const TensorPart whole{.elements = args.segments[i].bytes / element_bytes_};
    AddTensor(args.segments[i], args.parts.empty() ? whole : args.parts[i], hosts.PositionOf(self),
              hosts.HostOf(self));
  }
  // Where values are gathered within the host, they must fit into a chunk, too.
  DivideIntoChunks(static_cast<int64_t>(exchange.chunk_bytes()), hosts.most() > 1);
}

Run EncodedUnits::Lane(int64_t chunk, uint32_t lane) const {
  return Matching(units_, Chunk(chunk), &Unit::lane, lane);
}

Run EncodedUnits::Part(int64_t chunk, uint32_t lane, uint32_t host) const {
  return Matching(units_, Lane(chunk, lane), &Unit::host, host);
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
    unit.host = place.host;
    unit.is_measured = place.sum % kMeasuredUnits < 2;
    at += unit.elements;
    if (residuals == nullptr || place.lane != own_lane) continue;
    unit.tensor = residuals;
    unit.sum_residuals = residuals->sums.data() + place.sum * places_.elements + skip;
    if (places_.hosts == 2 || place.host != own_host) continue;
    unit.result_residuals = residuals->results.data() + place.result * places_.elements + skip;
  }
}

void EncodedUnits::DivideIntoChunks(int64_t room, bool holds_values) {
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
  for (size_t chunk = 0; chunk + 1 < starts_.size(); ++chunk) {
    Place({starts_[chunk], starts_[chunk + 1]});
  }
}

void EncodedUnits::Place(Run chunk) {
  const auto begin = units_.begin();
  std::stable_sort(begin + static_cast<ptrdiff_t>(chunk.first),
                   begin + static_cast<ptrdiff_t>(chunk.end), [](const Unit& a, const Unit& b) {
                     return std::pair(a.lane, a.host) < std::pair(b.lane, b.host);
                   });
  int64_t place = 0;
  int64_t encoded_place = 0;
  for (size_t i = chunk.first; i < chunk.end; ++i) {
    Unit& unit = units_[i];
    if (i > chunk.first && unit.lane != units_[i - 1].lane) encoded_place = 0;
    unit.place = place;
    unit.encoded_place = encoded_place;
    place += BytesOf(unit);
    encoded_place += EncodedBytesOf(unit);
  }
}

}  // namespace horoscale
