// The hosts of a process set's members, numbered as by Exchange::hosts().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

// `ranks` are those of the set, sorted; `hosts[r]` is any number for the host of rank r. Returns an
// empty vector if all ranks are on one host.
std::vector<uint32_t> SetHosts(std::span<const int> ranks, std::span<const uint32_t> hosts);

}  // namespace horoscale
