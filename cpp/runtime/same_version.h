// Whether the ranks of a job speak one version of the protocol, asked before anything else is: all
// of them get an error that names ranks and versions if they don't.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "base/wire_version.h"
#include "platform/deadline.h"
#include "runtime/starting_store.h"

namespace horoscale {

// Over the store: rank 0 says its version there, and the others compare theirs. One that differs
// fails, and leaves its reason for those that wait for it. kTimeout: rank 0 did not come in time.
Status CheckSameVersion(StartingStore& store, const std::string& key_prefix, int rank,
                        const Deadline& deadline, uint32_t own = kWireVersion);

// The versions of all ranks, as each of them knows them.
Status CheckSameVersion(std::span<const uint32_t> by_rank);

}  // namespace horoscale
