// Mesh: the links of one rank to all others of its host, made at start-up.
//
// The ranks gather their listening sockets at the store. Every rank connects to the lower ranks and
// accepts connections from the higher ones. Rank 0 accepts immediately, rank 1 after it has
// connected to rank 0, and so on, so there is no cyclic wait.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "rendezvous/store.h"
#include "transport/shm/link.h"

namespace horoscale {

struct MeshConfig {
  std::vector<int> ranks;  // ranks of this host, sorted, including this one
  std::string key_prefix;  // of the job and its round, for example "init1/"
  std::string secret;
  double seconds = 60;  // total time limit
  // Called periodically during waits; an error from it ends the wait. May be empty.
  std::function<Status()> look = nullptr;
  // Called with a failure before the links are closed. Closing them makes the peers fail, and they
  // must then find the cause. Returns the failure to report. May be empty.
  std::function<Status(const Status&)> explain = nullptr;
};

// Returns the links by rank, without this one. rings[r] is the control ring to rank r in this
// rank's arena. An error names the missing or failed ranks.
Result<std::map<int, ShmLink>> ConnectMesh(const MeshConfig& config, const LinkOffer& offer,
                                           const std::map<int, std::byte*>& rings, Store& store);

}  // namespace horoscale
