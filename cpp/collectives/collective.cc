#include "collectives/collective.h"

#include <algorithm>
#include <numeric>

namespace horoscale {

RowRange RowsOf(int64_t rows, uint32_t size, uint32_t index) {
  const int64_t each = rows / size;
  const int64_t extra = rows % size;
  const int64_t before = index;
  return {before * each + std::min(before, extra), each + (before < extra ? 1 : 0)};
}

RowRange RowsOf(std::span<const int64_t> splits, int64_t rows, uint32_t size, uint32_t index) {
  if (splits.empty()) return RowsOf(rows, size, index);
  const auto before = splits.first(index);
  return {std::accumulate(before.begin(), before.end(), int64_t{0}), splits[index]};
}

RowRange ReducescatterArgs::RowsFor(const ReducescatterItem& item, uint32_t size,
                                    uint32_t member) const {
  return RowsOf(splits, item.rows, size, positions.empty() ? member : positions[member]);
}

}  // namespace horoscale
