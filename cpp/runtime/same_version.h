// Checks before all other communication that the ranks of a job have the same protocol version.
// Otherwise all of them return an error that names ranks and versions.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/wire_version.h"

namespace horoscale {

// `by_rank` contains the versions of all ranks, and is the same on each.
Status CheckSameVersion(std::span<const uint32_t> by_rank);

}  // namespace horoscale
