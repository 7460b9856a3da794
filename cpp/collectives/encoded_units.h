// The units of a bucket that is encoded: who folds which, which chunk they travel in, and where
// they are there. The same on all members, but for what is theirs alone.
//
// A unit has a lane: the position of the member that folds it, among those of a host. And an owner:
// in an allreduce the host whose member of the lane folds it over hosts, in a reducescatter the
// member that gets it. Members on hosts of different sizes fold for an owner in different lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/collective.h"
#include "collectives/host_groups.h"
#include "collectives/residuals.h"
#include "collectives/round_loop.h"

namespace horoscale {

class EncodedUnits {
 public:
  struct Unit {
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    int64_t elements = 0;
    uint32_t lane = 0;
    uint32_t owner = 0;
    // Of what this member folds, where residuals are kept; else null.
    float* sum_residuals = nullptr;
    float* result_residuals = nullptr;
    TensorResiduals* tensor = nullptr;  // whose they are
    bool is_measured = false;           // one of a few, whose relative error is measured
    int64_t place = 0;                  // of its values in the chunk: the same in a host
    int64_t encoded_place = 0;          // where it is encoded: the same on all hosts
  };
  // Units one behind the other, by their index.
  struct Run {
    size_t first = 0;
    size_t end = 0;
    bool empty() const { return first == end; }
  };

  EncodedUnits(const Exchange& exchange, const HostGroups& hosts, const AllreduceArgs& args);
  EncodedUnits(const Exchange& exchange, const HostGroups& hosts, const ReducescatterArgs& args);

  int64_t chunks() const { return static_cast<int64_t>(starts_.size()) - 1; }
  uint32_t lanes() const { return lanes_; }
  const Unit& operator[](size_t index) const { return units_[index]; }

  // Of a chunk: by lanes, and these by owners.
  Run Chunk(int64_t chunk) const {
    return {starts_[static_cast<size_t>(chunk)], starts_[static_cast<size_t>(chunk) + 1]};
  }
  Run Lane(int64_t chunk, uint32_t lane) const;
  Run Part(int64_t chunk, uint32_t lane, uint32_t owner) const;

  // Of the values.
  int64_t BytesOf(const Unit& unit) const { return unit.elements * element_bytes_; }
  ByteRange ValuesOf(Run run) const;
  // Of one owner, or of one lane of an allreduce: where its units are encoded.
  int64_t EncodedBytesOf(const Unit& unit) const;
  ByteRange EncodedOf(Run run) const;

 private:
  EncodedUnits(const UnitPlaces& places, uint32_t lanes, DataType dtype, const Encoding& encoding);

  void AddTensor(const Segment& segment, const TensorPart& part, uint32_t own_lane,
                 uint32_t own_host);
  void AddRows(const Exchange& exchange, const HostGroups& hosts, const ReducescatterArgs& args,
               size_t item, std::vector<std::vector<Unit>>& by_owner);
  void AddInTurns(const std::vector<std::vector<Unit>>& by_owner);
  void DivideIntoChunks(const HostGroups& hosts, int64_t room);
  void PlaceValues(Run chunk);
  void PlaceEncoded(Run chunk);

  const UnitPlaces places_;
  const uint32_t lanes_;
  const int64_t element_bytes_;
  const Encoding encoding_;
  std::vector<Unit> units_;
  std::vector<size_t> starts_;  // of chunks, and the end
};

}  // namespace horoscale
