// The links between hosts that are made at the start: as few as let every rank hear of every other
// rank's end. All others are made when something is to be sent for the first time. Pure.
//
// A rank is linked with one rank of each other host at least, which sees the ends of all ranks of
// its host and passes them on. The work is spread: rank i of a host is linked with rank i mod n of
// a host of n ranks, and so the other way round. The report tree of all ranks is among these links,
// because every job uses it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

// The ranks of other hosts that `rank` is linked with from the start, ascending. `hosts[r]` is the
// host of rank r, numbered in the order of the hosts' lowest ranks. Symmetric.
std::vector<int> BackbonePeers(int rank, std::span<const uint32_t> hosts);

}  // namespace horoscale
