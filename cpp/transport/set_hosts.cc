#include "transport/set_hosts.h"

#include <map>

namespace horoscale {

std::vector<uint32_t> SetHosts(std::span<const int> ranks, std::span<const uint32_t> hosts) {
  std::vector<uint32_t> result;
  std::map<uint32_t, uint32_t> numbers;
  for (const int rank : ranks) {
    const auto next = static_cast<uint32_t>(numbers.size());
    result.push_back(numbers.try_emplace(hosts[static_cast<size_t>(rank)], next).first->second);
  }
  if (numbers.size() < 2) result.clear();
  return result;
}

}  // namespace horoscale
