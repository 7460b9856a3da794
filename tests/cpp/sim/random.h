// A small seeded generator whose sequence is the same on every platform.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace horoscale::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint32_t Below(size_t limit) { return static_cast<uint32_t>(Next() % limit); }
  int Between(int low, int high) { return low + static_cast<int>(Below(high - low + 1)); }
  bool Chance(int percent) { return Below(100) < static_cast<uint32_t>(percent); }
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[Below(from.size())];
  }
  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace horoscale::sim
