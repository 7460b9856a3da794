// The backbone: the links between hosts that are created at startup, as few as are needed for every
// rank to learn of every other rank's exit. Other links are created when something is first sent.
// Pure.
//
// Each rank is linked to at least one rank of each other host, which detects the exits of all ranks
// of its host and forwards them. The load is distributed: rank i of a host is linked to rank i mod
// n of a host with n ranks, and vice versa. The report tree of all ranks is part of the backbone,
// because every job uses it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

// The ranks of other hosts to which `rank` is linked at startup, ascending. `hosts[r]` is the host
// of rank r, numbered in the order of the hosts' lowest ranks. Symmetric.
std::vector<int> BackbonePeers(int rank, std::span<const uint32_t> hosts);

}  // namespace horoscale
