// The hosts of a process set's members, as Exchange::hosts() numbers them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

// `ranks`: of the set, sorted; `hosts[r]`: any number for the host of rank r. Empty if the ranks
// are all on one host.
std::vector<uint32_t> SetHosts(std::span<const int> ranks, std::span<const uint32_t> hosts);

}  // namespace horoscale
