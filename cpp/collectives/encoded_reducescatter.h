// Reducescatter of members on several hosts whose sums travel in a lossy encoding.
#pragma once

#include <memory>

#include "collectives/collective.h"
#include "collectives/host_groups.h"

namespace horoscale {

// `hosts`: all members, on two hosts or more. IsEncoded() for its arguments.
std::unique_ptr<Collective> MakeEncodedReducescatter(Exchange& exchange, HostGroups hosts,
                                                     const ReducescatterArgs& args);

}  // namespace horoscale
