// TcpMesh: the connections of one rank to ranks of other hosts that are created at startup.
//
// The ranks gather their addresses at the store. Every rank connects to the lower ranks and
// concurrently accepts connections from the higher ones, so that waits do not add up. A pair of
// ranks has one stream for control and several for data. The TcpLinkMaker creates these links and
// later ones.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "rendezvous/store.h"
#include "transport/tcp/tcp_door.h"
#include "transport/tcp/tcp_link_maker.h"

namespace horoscale {

struct TcpMeshConfig {
  TcpLinkTerms terms;
  TcpDoor::Options door;
  int size = 1;              // of the job
  std::vector<int> peers;    // the ranks of other hosts, sorted
  std::vector<int> at_once;  // peers to which links are created at startup
  double seconds = 60;       // for everything
  // Called periodically during waits; an error from it ends the wait. May be empty.
  std::function<Status()> look = nullptr;
  // Called with a failure before the links are closed. Closing them makes the peers fail, and they
  // must then find the cause. Returns the failure to report. May be empty.
  std::function<Status(const Status&)> explain = nullptr;
};

struct TcpMesh {
  std::map<int, TcpStreams> links;  // at least those of the startup, by rank
  std::unique_ptr<TcpLinkMaker> maker;
};

// An error names the missing or unreachable ranks and the addresses that were tried.
Result<TcpMesh> ConnectTcpMesh(const TcpMeshConfig& config, Store& store);

}  // namespace horoscale
