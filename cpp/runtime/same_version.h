// Whether the ranks of a job speak one version of the protocol, asked before anything else is: all
// of them get an error that names ranks and versions if they don't.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/wire_version.h"

namespace horoscale {

// The versions of all ranks, as each of them knows them.
Status CheckSameVersion(std::span<const uint32_t> by_rank);

}  // namespace horoscale
