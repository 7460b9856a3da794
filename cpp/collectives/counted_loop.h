// A round loop whose first rounds tell all members how many rows each of them brings: the base of
// allgather and gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/round_loop.h"

namespace horoscale {

class CountedLoop : public RoundLoop {
 protected:
  // `operation`: its name in messages; a literal.
  CountedLoop(Exchange& exchange, std::string_view operation, std::vector<AllgatherItem> items);

  const std::vector<AllgatherItem>& items() const { return items_; }
  // The rounds below this one are those of the counts.
  int64_t count_rounds() const { return count_rounds_; }
  bool SendCounts(int64_t round);
  Progress ReceiveCounts(int64_t round);

  // When all counts are there: the rows that a member brings for an item. To be relied on after
  // CheckCounts() was well: then the sums of all sizes that follow from the counts are sizes.
  int64_t Rows(uint32_t member, size_t item) const {
    return counts_[member * items_.size() + item];
  }
  Status CheckCounts() const;

 private:
  static int64_t RoundsFor(const Exchange& exchange, size_t items);
  int64_t* CountsOf(uint32_t member) { return counts_.data() + member * items_.size(); }
  ByteRange CountsPart(int64_t round) const;

  const std::string_view operation_;
  const std::vector<AllgatherItem> items_;
  const int64_t count_rounds_;
  std::vector<int64_t> counts_;  // rows, by member and item
};

}  // namespace horoscale
