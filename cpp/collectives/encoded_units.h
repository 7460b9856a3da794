// The units of a bucket that is encoded: who folds which, which chunk they travel in, and where
// they are there. The same on all members, but for what is theirs alone.
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
    uint32_t host = 0;
    // Of what this member folds, where residuals are kept; else null.
    float* sum_residuals = nullptr;
    float* result_residuals = nullptr;
    TensorResiduals* tensor = nullptr;  // whose they are
    bool is_measured = false;           // one of a few, whose relative error is measured
    int64_t place = 0;                  // of its values in the chunk
    int64_t encoded_place = 0;          // among the encoded units of its lane in the chunk
  };
  // Units one behind the other, by their index.
  struct Run {
    size_t first = 0;
    size_t end = 0;
    bool empty() const { return first == end; }
  };

  EncodedUnits(const Exchange& exchange, const HostGroups& hosts, const AllreduceArgs& args);

  int64_t chunks() const { return static_cast<int64_t>(starts_.size()) - 1; }
  uint32_t lanes() const { return places_.lanes; }
  const Unit& operator[](size_t index) const { return units_[index]; }

  // Of a chunk: by lanes, and these by hosts.
  Run Chunk(int64_t chunk) const {
    return {starts_[static_cast<size_t>(chunk)], starts_[static_cast<size_t>(chunk) + 1]};
  }
  Run Lane(int64_t chunk, uint32_t lane) const;
  Run Part(int64_t chunk, uint32_t lane, uint32_t host) const;

  // Of the values.
  int64_t BytesOf(const Unit& unit) const { return unit.elements * element_bytes_; }
  ByteRange ValuesOf(Run run) const;
  // Where the lane's units are encoded.
  int64_t EncodedBytesOf(const Unit& unit) const;
  ByteRange EncodedOf(Run run) const;

 private:
  void AddTensor(const Segment& segment, const TensorPart& part, uint32_t own_lane,
                 uint32_t own_host);
  void DivideIntoChunks(int64_t room, bool holds_values);
  void Place(Run chunk);

  const UnitPlaces places_;
  const int64_t element_bytes_;
  const Encoding encoding_;
  std::vector<Unit> units_;
  std::vector<size_t> starts_;  // of chunks, and the end
};

}  // namespace horoscale
