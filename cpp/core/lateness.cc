#include "core/lateness.h"

#include <algorithm>

namespace horoscale {

void Lateness::OnLast(std::span<const uint32_t> last, double since, double now) {
  if (now <= since) return;
  const double seconds = std::max(0.0, now - std::max(since, counted_until_));
  counted_until_ = std::max(counted_until_, now);
  for (const uint32_t member : last) {
    ++members_[member].operations;
    members_[member].seconds += seconds;
  }
}

}  // namespace horoscale
