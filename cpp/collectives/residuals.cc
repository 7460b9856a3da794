#include "collectives/residuals.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace horoscale {

UnitPlaces::Place UnitPlaces::Of(int64_t unit, uint32_t home) const {
  const int64_t first = home % (int64_t{lanes} * hosts);
  const int64_t turn = (unit + first) / lanes;
  return {.lane = static_cast<uint32_t>((unit + first) % lanes),
          .host = static_cast<uint32_t>(turn % hosts),
          .sum = turn - first / lanes,
          .result = turn / hosts};
}

uint32_t HomeOf(std::string_view name, uint32_t tensor) {
  uint32_t hash = 2'166'136'261u + tensor;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16'777'619u;
  return hash;
}

namespace {

struct Sizes {
  size_t sums = 0;
  size_t results = 0;
};

// Room for the units up to the tensor's last one, which may be small: a small tensor doesn't need a
// whole unit.
Sizes SizesOf(const UnitPlaces& places, uint32_t home, int64_t elements) {
  if (elements == 0) return {};
  const UnitPlaces::Place last = places.Of((elements - 1) / places.elements, home);
  const auto size = [&](int64_t last_unit) {
    return static_cast<size_t>(std::min((last_unit + 1) * places.elements, elements));
  };
  return {size(last.sum), places.hosts > 2 ? size(last.result) : 0};
}

}  // namespace

void TensorResiduals::Prepare(const UnitPlaces& new_places, uint32_t home,
                              int64_t tensor_elements) {
  if (new_places == places && tensor_elements == elements) return;
  places = new_places;
  elements = tensor_elements;
  shares.clear();
  const Sizes sizes = SizesOf(places, home, elements);
  sums.assign(sizes.sums, 0.0f);
  results.assign(sizes.results, 0.0f);
}

void TensorResiduals::PrepareShares(std::vector<int64_t> new_shares, int64_t unit_elements,
                                    int64_t kept) {
  const UnitPlaces new_places{.lanes = 1, .hosts = 1, .elements = unit_elements};
  const auto room = static_cast<size_t>(kept);
  if (new_places == places && new_shares == shares && sums.size() == room) return;
  places = new_places;
  elements = std::accumulate(new_shares.begin(), new_shares.end(), int64_t{0});
  shares = std::move(new_shares);
  sums.assign(room, 0.0f);
  results.clear();
}

bool TensorResiduals::HasSizes(uint32_t home) const {
  if (places.hosts == 1) return static_cast<int64_t>(sums.size()) <= elements && results.empty();
  const Sizes sizes = SizesOf(places, home, elements);
  return sums.size() == sizes.sums && results.size() == sizes.results;
}

void TensorResiduals::Scale(float factor) {
  for (float& residual : sums) residual *= factor;
  for (float& residual : results) residual *= factor;
}

}  // namespace horoscale
