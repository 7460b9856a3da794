#include "collectives/element_stream.h"

#include <utility>

#include "collectives/adasum.h"
#include "collectives/round_loop.h"

namespace horoscale {

ElementStream::ElementStream(std::vector<ElementRange> ranges)
    : ranges_(std::move(ranges)), starts_(ranges_.size() + 1) {
  for (size_t i = 0; i < ranges_.size(); ++i) {
    starts_[i + 1] = starts_[i] + DivideUp(ranges_[i].count, kAdasumLanes) * kAdasumLanes;
  }
}

}  // namespace horoscale
