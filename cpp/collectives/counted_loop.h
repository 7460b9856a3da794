// A round loop whose first rounds tell all members how many rows each of them brings, and what else
// there is to say of them: the base of allgather and gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/round_loop.h"

namespace horoscale {

class CountedLoop : public RoundLoop {
 protected:
  // `operation`: its name in messages; a literal. `remarks`: what this member says beside its
  // counts; all say as many words.
  CountedLoop(Exchange& exchange, std::string_view operation, std::vector<AllgatherItem> items,
              std::span<const int64_t> remarks = {});

  const std::vector<AllgatherItem>& items() const { return items_; }
  // The rounds below this one are those of the counts.
  int64_t count_rounds() const { return count_rounds_; }
  bool SendCounts(int64_t round);
  Progress ReceiveCounts(int64_t round);

  // When all counts are there: the rows that a member brings for an item. To be relied on after
  // CheckCounts() was well: then the sums of all sizes that follow from the counts are sizes.
  int64_t Rows(uint32_t member, size_t item) const { return words_[member * width_ + item]; }
  Status CheckCounts() const;
  // And what else it said; nothing has been checked.
  std::span<const int64_t> Remarks(uint32_t member) const {
    return std::span(words_).subspan(member * width_, width_).subspan(items_.size());
  }

 private:
  static int64_t RoundsFor(const Exchange& exchange, size_t words);
  int64_t* WordsOf(uint32_t member) { return words_.data() + member * width_; }
  ByteRange WordsPart(int64_t round) const;

  const std::string_view operation_;
  const std::vector<AllgatherItem> items_;
  const size_t width_;  // words that each member says
  const int64_t count_rounds_;
  std::vector<int64_t> words_;  // by member: the rows of each item, then the remarks
};

}  // namespace horoscale
