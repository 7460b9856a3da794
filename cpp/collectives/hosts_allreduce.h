// Allreduce of participants on several hosts: reduced in the host, exchanged between hosts, spread
// in the host. What hosts send each other are sums of hosts, so that a byte of a gradient leaves a
// host as seldom as the number of hosts allows, however many ranks are on them.
#pragma once

#include <memory>
#include <optional>

#include "collectives/collective.h"
#include "collectives/host_groups.h"

namespace horoscale {

// `hosts`: the participants, on two hosts or more. There is something to reduce. The member itself
// may be absent.
std::unique_ptr<Collective> MakeHostsAllreduce(Exchange& exchange, HostGroups hosts,
                                               AllreduceArgs args);

// The two parts of a reduction over several hosts: of the values on a host, and of the hosts'
// results. Both round to the type in which sums travel (`wire`, else the tensor's own).
Reduction InHost(Reduction reduction, std::optional<DataType> wire);
Reduction BetweenHosts(Reduction reduction, std::optional<DataType> wire);
// A reduction as BetweenHosts(), whose result then is converted to the tensor's type.
Reduction IntoTensors(Reduction between_hosts, DataType dtype);

}  // namespace horoscale
