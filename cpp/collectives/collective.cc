#include "collectives/collective.h"

#include <algorithm>
#include <cstdlib>

namespace horoscale {

RowRange RowsOf(int64_t rows, uint32_t size, uint32_t index) {
  const int64_t each = rows / size;
  const int64_t extra = rows % size;
  const int64_t before = index;
  return {before * each + std::min(before, extra), each + (before < extra ? 1 : 0)};
}

}  // namespace horoscale
