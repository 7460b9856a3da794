// What the collectives between hosts whose sums travel in a lossy encoding share: the members of a
// host contribute to sums, which are encoded, sent to other hosts, and decoded and folded there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/collective.h"
#include "collectives/encoded_units.h"
#include "collectives/host_groups.h"
#include "collectives/round_loop.h"

namespace horoscale {

// Whether there is a lossy encoding for the results of this reduction.
bool IsEncoded(const Encoding& encoding, const Reduction& reduction);

// Adds the time between its construction and destruction.
class CodingTime {
 public:
  explicit CodingTime(EncodingTotals* totals);
  ~CodingTime();
  CodingTime(const CodingTime&) = delete;
  CodingTime& operator=(const CodingTime&) = delete;

 private:
  EncodingTotals* const totals_;
  double since_ = 0;
};

class EncodedFold : public RoundLoop {
 protected:
  using Unit = EncodedUnits::Unit;
  using Run = EncodedUnits::Run;

  // All members take part, on two hosts or more.
  EncodedFold(Exchange& exchange, HostGroups hosts, EncodedUnits units, int64_t rounds,
              const Reduction& reduction, const Encoding& encoding, EncodingTotals* totals);

  // To the host: this member's values of the units that others fold.
  bool SendContribution(int64_t round, int64_t chunk);
  // Finds the contributions to the sums that this member folds; false if one is not there yet. With
  // one member on the host there are none.
  bool FindContributions(int64_t round);

  // The host's sum.
  void FoldHost(const Unit& unit, float* sums);
  // Encodes values_.
  void EncodeValues(const Unit& unit, std::byte* out, float* residuals);
  // Folds what the hosts have sent, at sources_. `own`: this host's sum, where that is not encoded.
  void FoldPartials(const Unit& unit, const Reduction& reduction, std::byte* dst,
                    const float* own = nullptr);
  // The same reduction, with the result in the tensors' type.
  Reduction InTensors(Reduction reduction) const;

  Run OwnLane(int64_t chunk) const { return units_.Lane(chunk, lane_); }
  size_t Bank(int64_t chunk) const { return static_cast<size_t>(chunk) % banks_; }
  void ClearExtents();
  void SetExtent(uint32_t member, ByteRange range);
  static std::byte* AsBytes(float* values) { return reinterpret_cast<std::byte*>(values); }

  const Encoding encoding_;
  const DataType dtype_;
  const Reduction in_host_;  // to float32
  const Reduction average_;  // of sums in float32
  const HostGroups hosts_;
  const EncodedUnits units_;
  const size_t banks_;
  const uint32_t host_;  // of this member
  const uint32_t lane_;
  const std::vector<uint32_t>& locals_;  // the host's participants
  EncodingTotals* const totals_;
  std::vector<Exchange::Extent> extents_;
  std::vector<const std::byte*> sources_;  // by host
  int64_t folded_chunks_ = 0;
  alignas(64) float values_[kGroupElements];
  alignas(64) float sums_[kGroupElements];

 private:
  std::vector<const std::byte*> contributions_;  // by local member; null for its own input
  std::vector<const std::byte*> inputs_;
};

}  // namespace horoscale
